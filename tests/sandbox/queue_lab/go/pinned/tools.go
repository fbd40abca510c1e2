// Copyright: Contributors to the autopilot.gpu collection
// GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

//go:build tools

// What `go mod tidy` is to keep the modules of.
package queue

import (
	_ "github.com/project-codeflare/appwrapper/cmd"
)
