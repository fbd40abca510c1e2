// Copyright: Contributors to the autopilot.gpu collection
// GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// The scheduler with Coscheduling and the controller of its PodGroups, of scheduler-plugins, in one executable: which one it is, the name it is called by says. Upstream's main packages, without the plugins that MLBatch leaves out.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme"
	controller "sigs.k8s.io/scheduler-plugins/cmd/controller/app"
	"sigs.k8s.io/scheduler-plugins/pkg/coscheduling"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "kube-scheduler":
		os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(coscheduling.Name, coscheduling.New))))
	case "controller":
		options := controller.NewServerRunOptions()
		pflag.CommandLine.AddGoFlagSet(flag.CommandLine)
		pflag.Parse()
		fmt.Fprintln(os.Stderr, controller.Run(options))
		os.Exit(1)
	default:
		fmt.Fprintf(os.Stderr, "%s: called by a name that is no program of scheduler-plugins\n", name)
		os.Exit(2)
	}
}
