// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// askAndCloseWrite sends a request and closes its sending half, as "nc -N" and a
// script with shutdown(SHUT_WR) do.
func askAndCloseWrite(socket, path string) (status int, body []byte, err error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return 0, nil, err
	}
	defer c.Close()
	_, err = fmt.Fprintf(c, "GET %s HTTP/1.0\r\n\r\n", path)
	if err := errors.Join(err, c.(*net.UnixConn).CloseWrite()); err != nil {
		return 0, nil, err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, nil, err
	}
	defer r.Body.Close()
	body, err = io.ReadAll(r.Body)
	return r.StatusCode, body, err
}

// TestCheckUnderLoad: while pods come and go, each check is answered, and finds
// nothing.
func TestCheckUnderLoad(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, roomyConf)
	n.start(t)
	for i := range 200 { // records to read
		n.mustAdd(t, fmt.Sprintf("stays%d", i))
	}
	stop := make(chan struct{})
	var load sync.WaitGroup
	errs := make([]error, 4)
	for w := range errs {
		load.Go(func() {
			for i := 0; errs[w] == nil; i++ {
				select {
				case <-stop:
					return
				default:
				}
				k := Key{"net", fmt.Sprintf("load%d-%d", w, i), "eth0"}
				for _, v := range []Verb{Add, Del} {
					if r, fate, err := ask(n.socket(), k.request(v), leaving{}); err != nil || fate != Answered {
						errs[w] = fmt.Errorf("%s: %s, %w, %w", v, fate, r.Error, err)
					}
				}
			}
		})
	}
	var failed []string
	for range 300 {
		status, body, err := askAndCloseWrite(n.socket(), localapi.PathCheckLedger)
		if err != nil || status != http.StatusOK {
			failed = append(failed, fmt.Sprint(status, " ", string(body), err))
		}
	}
	close(stop)
	load.Wait()
	g.Expect(errors.Join(errs...)).To(Succeed())
	g.Expect(failed).To(BeEmpty())
}
