/* Copyright: Contributors to the autopilot.gpu collection
 * GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Preloaded, it is the kernel's word on its clock, SANDBOX_KERNEL_CLOCK: synchronised, unsynchronised or refused. Time itself stays as it is.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timex.h>

int adjtimex(struct timex *told)
{
    const char *word = getenv("SANDBOX_KERNEL_CLOCK");
    int synchronised = word && strcmp(word, "synchronised") == 0;
    if ((word && strcmp(word, "refused") == 0) || told->modes) {
        errno = EPERM;
        return -1;
    }
    memset(told, 0, sizeof *told);
    told->status = synchronised ? 0 : STA_UNSYNC;
    told->maxerror = synchronised ? 21500 : 16000000;
    return synchronised ? TIME_OK : TIME_ERROR;
}
