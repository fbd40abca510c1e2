// Copyright: Contributors to the autopilot.gpu collection
// SPDX-License-Identifier: GPL-3.0-or-later
//
// How a driver call never comes back. What the caller does about signals before is part of how it hangs.

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Blocks in the kernel in state D. With tests/sandbox/frozen.py serving $SANDBOX_NODE/frozen not even SIGKILL ends it;
// without, the parent of a vfork waits in state D and only SIGKILL ends it.
static void block_uninterruptibly(void) {
    char path[4096];
    const char *node = getenv("SANDBOX_NODE");
    snprintf(path, sizeof path, "%s/frozen/door", node ? node : ".");
    close(open(path, O_RDONLY | O_CLOEXEC));
    pid_t child = vfork();
    if (child == 0) for (;;) pause();
}

static void never_return(const char *mode) {
    for (;;) {
        if (!strcmp(mode, "stop")) raise(SIGSTOP);
        else if (!strcmp(mode, "uninterruptible")) block_uninterruptibly();
        else pause();
    }
}
