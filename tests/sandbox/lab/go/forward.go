// Copyright: Contributors to the autopilot.gpu collection
// GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"
)

// forward passes what is connected to the listening socket that the descriptor in os.Args[1] is, on to the address in os.Args[2].
//
// The socket was made in another network namespace and stays there; the connections to the address are made in this one. While the owner of
// the socket has it shut down, Accept fails.
func forward() error {
	if len(os.Args) != 3 {
		return fmt.Errorf("usage: forward DESCRIPTOR HOST:PORT")
	}
	descriptor, err := strconv.Atoi(os.Args[1])
	if err != nil {
		return err
	}
	listener, err := net.FileListener(os.NewFile(uintptr(descriptor), "listener"))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		outer, err := listener.Accept()
		if err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		go join(outer.(*net.TCPConn), os.Args[2])
	}
}

func join(outer *net.TCPConn, address string) {
	defer outer.Close()
	there, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		// The other side sees a reset, not an orderly end.
		outer.SetLinger(0)
		return
	}
	inner := there.(*net.TCPConn)
	defer inner.Close()
	done := make(chan struct{})
	go func() {
		io.Copy(inner, outer)
		inner.CloseWrite()
		close(done)
	}()
	io.Copy(outer, inner)
	outer.CloseWrite()
	<-done
}
