// Copyright: Contributors to the autopilot.gpu collection
// GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// All that a small pod needs: `pod pause`, `pod serve PORT TEXT` (HTTP, the text and a line end to every request), `pod fetch URL`.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "pause":
		// The first process of a pod; the kernel reaps what is orphaned to it.
		signal.Ignore(syscall.SIGCHLD)
		wait()
	case len(os.Args) == 4 && os.Args[1] == "serve":
		go wait()
		http.HandleFunc("/", func(answer http.ResponseWriter, _ *http.Request) { fmt.Fprintln(answer, os.Args[3]) })
		fmt.Println("serving", os.Args[3])
		fail(http.ListenAndServe(":"+os.Args[2], nil))
	case len(os.Args) == 3 && os.Args[1] == "fetch":
		client := http.Client{Timeout: 5 * time.Second}
		answer, err := client.Get(os.Args[2])
		if err != nil {
			fail(err)
		}
		io.Copy(os.Stdout, answer.Body)
	case len(os.Args) == 3 && os.Args[1] == "read":
		content, err := os.ReadFile(os.Args[2])
		if err != nil {
			fail(err)
		}
		os.Stdout.Write(content)
	default:
		fail(fmt.Errorf("usage: pod pause | serve PORT TEXT | fetch URL | read FILE"))
	}
}

func wait() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
	os.Exit(0)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
