// Copyright: Contributors to the autopilot.gpu collection
// SPDX-License-Identifier: GPL-3.0-or-later
//
// Which driver calls were made: one name a line in the file that SANDBOX_CALLS names; nothing where it is not set.

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void append_line(const char *path, const char *words) {
    char line[256];
    int length = snprintf(line, sizeof line, "%s\n", words), file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0 || write(file, line, (size_t)length) != length) perror(path);
    if (file >= 0) close(file);
}

static void called(const char *function) {
    const char *path = getenv("SANDBOX_CALLS");
    if (path && *path) append_line(path, function);
}
