// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func TestTheSocket(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	socket := socketIn(filepath.Join(runDir(t), "run"))
	s := a.serve(t, socket)
	info, err := os.Stat(socket)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode()).To(Equal(os.ModeSocket | 0o600))
	dir, err := os.Stat(filepath.Dir(socket))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(dir.Mode().Perm()).To(Equal(os.FileMode(0o700)))
	code, body := s.get(g, localapi.PathStatus)
	g.Expect(code).To(Equal(200))
	g.Expect(body).To(ContainSubstring(`"nodeName":"node-a"`))
	s.stop()
	g.Expect(<-s.ended).To(Succeed())
	s.ended <- nil
	g.Expect(socket).NotTo(BeAnExistingFile(), "it takes its socket along")
	entries, err := os.ReadDir(filepath.Dir(socket))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(entries).To(BeEmpty())
}

// What a dead agent left is replaced.
func TestAStaleSocket(t *testing.T) {
	for name, leave := range map[string]func(g Gomega, socket string){
		"a socket": func(g Gomega, socket string) {
			l, err := net.Listen("unix", socket)
			g.Expect(err).NotTo(HaveOccurred())
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			g.Expect(l.Close()).To(Succeed())
		},
		"one under its first name": func(g Gomega, socket string) {
			l, err := net.Listen("unix", socket+".new")
			g.Expect(err).NotTo(HaveOccurred())
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			g.Expect(l.Close()).To(Succeed())
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			socket := socketIn(runDir(t))
			leave(g, socket)
			s := newAgent(t).serve(t, socket)
			code, _ := s.get(g, localapi.PathStatus)
			g.Expect(code).To(Equal(200))
		})
	}
}

func TestASocketWithTooLongAPath(t *testing.T) {
	g := NewWithT(t)
	p := restapi.NewPlugin(restapi.Deps{Listen: restapi.Listen{Socket: "/tmp/" + strings.Repeat("x", 99)}})
	g.Expect(p.Serve(t.Context())).To(MatchError(ContainSubstring("its path has 104 bytes, and Linux takes 103")))
}

// A second agent is refused, and the first one goes on.
func TestALiveSocket(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	s := a.serve(t, socketIn(runDir(t)))
	deps := a.deps
	deps.Listen.Socket = s.socket
	err := restapi.NewPlugin(deps).Serve(ctx())
	g.Expect(err).To(MatchError(And(ContainSubstring(s.socket), ContainSubstring("another agent"))))
	code, _ := s.get(g, localapi.PathStatus)
	g.Expect(code).To(Equal(200))
}

func TestASocketThatCannotBeMade(t *testing.T) {
	g := NewWithT(t)
	dir := runDir(t)
	g.Expect(os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)).To(Succeed())
	for _, socket := range []string{socketIn(filepath.Join(dir, "file")), socketIn(filepath.Join(dir, strings.Repeat("x", 120)))} {
		deps := newAgent(t).deps
		deps.Listen.Socket = socket
		g.Expect(restapi.NewPlugin(deps).Serve(ctx())).To(MatchError(ContainSubstring(socket)))
	}
}

// A request that is under way when the agent stops gets its answer.
func TestTheAgentStopsDuringARequest(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	begun, goOn := make(chan struct{}), make(chan struct{})
	a.deps.Pods = &pods{serve: func(context.Context, cni.Request) (cni.Reply, error) {
		close(begun)
		<-goOn
		return cni.Reply{IPs: []cni.IP{{Address: "10.1.5.7/24"}}}, nil
	}}
	s := a.serve(t, socketIn(runDir(t)))
	answer := make(chan error, 1)
	go func() {
		reply, err := cniclient.Ask(ctx(), s.http.Do, cni.Request{Command: "ADD", Network: "pods", ContainerID: "c9", IfName: "eth0", Netns: "/run/netns/c9"})
		answer <- errors.Join(err, errors.New(cniclient.Address(reply)))
	}()
	<-begun
	s.stop()
	close(goOn)
	g.Expect(<-answer).To(MatchError("10.1.5.7"))
}

// Records come as they happen, one a line, until the caller or the agent goes.
func TestFollowingTheEvents(t *testing.T) {
	for _, end := range []string{"the caller goes", "the agent stops"} {
		t.Run(end, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t)
			a.happens("first")
			a.happens("second")
			s := a.serve(t, socketIn(runDir(t)))
			c, cancel := context.WithCancel(ctx())
			defer cancel()
			r, err := http.NewRequestWithContext(c, "GET", "http://localhost"+localapi.PathEvents+"?follow=true&since=1", nil)
			g.Expect(err).NotTo(HaveOccurred())
			answer, err := s.http.Do(r)
			g.Expect(err).NotTo(HaveOccurred())
			defer answer.Body.Close()
			g.Expect(answer.Header.Get("Content-Type")).To(Equal("application/x-ndjson"))
			in := bufio.NewReader(answer.Body)
			for i, name := range []string{"second", "third", "fourth"} {
				if i > 0 {
					a.happens(name)
				}
				line, err := in.ReadString('\n')
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(line).To(ContainSubstring(fmt.Sprintf(`"Name":%q`, name)))
			}
			if end == "the agent stops" {
				s.stop()
				_, err = in.ReadString('\n')
				g.Expect(err).To(MatchError(io.EOF), "it ends well")
			}
		})
	}
}

// Each answer says of which run of the agent it is, and one that ends because the
// agent stops has all that has happened by then.
func TestTheEndOfFollowing(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	a.status.Started = time.Date(2026, 3, 4, 12, 0, 0, 7, time.FixedZone("", 3600))
	s := a.serve(t, socketIn(runDir(t)))
	r, err := s.http.Get("http://localhost" + localapi.PathEvents + "?follow=true")
	g.Expect(err).NotTo(HaveOccurred())
	defer r.Body.Close()
	g.Expect(r.Header.Get(localapi.EventsStarted)).To(Equal("2026-03-04T11:00:00.000000007Z"))
	a.mu.Lock() // the last event comes unnoticed, together with the end
	a.records = append(a.records, controller.Record{Name: "Shutdown"})
	a.mu.Unlock()
	s.stop()
	body, err := io.ReadAll(r.Body)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(lines(body)).To(ConsistOf(ContainSubstring("Shutdown")))
}

// The file comes whole, with its length at the end. A failure on the way comes there, too,
// and one before the first byte is an error as any other.
func TestBackup(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	content := strings.Repeat("page", 100000)
	a.backup = func(w io.Writer) (int64, error) {
		n, err := io.WriteString(w, content)
		return int64(n), err
	}
	s := a.serve(t, socketIn(runDir(t)))
	r, err := s.http.Get("http://localhost" + localapi.PathBackup)
	g.Expect(err).NotTo(HaveOccurred())
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(body) == content).To(BeTrue())
	g.Expect(r.Trailer.Get("X-Bytes")).To(Equal(fmt.Sprint(len(content))))

	a.backup = func(w io.Writer) (int64, error) {
		n, _ := io.WriteString(w, content[:5000])
		return int64(n), errInjected
	}
	broken, err := s.http.Get("http://localhost" + localapi.PathBackup)
	g.Expect(err).NotTo(HaveOccurred())
	defer broken.Body.Close()
	g.Expect(io.ReadAll(broken.Body)).To(HaveLen(5000))
	g.Expect(broken.Trailer.Get("X-Error")).To(Equal(errInjected.Error()))
	g.Expect(broken.Trailer.Get("X-Bytes")).To(BeEmpty(), "half a file must not look like one")

	a.backup = func(io.Writer) (int64, error) { return 0, errInjected }
	none, err := s.http.Get("http://localhost" + localapi.PathBackup)
	g.Expect(err).NotTo(HaveOccurred())
	defer none.Body.Close()
	g.Expect(none.StatusCode).To(Equal(http.StatusInternalServerError))
	g.Expect(io.ReadAll(none.Body)).To(ContainSubstring(errInjected.Error()))
}

// A caller that never finishes its head is not waited for.
func TestACallerThatSaysNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes the five seconds that such a caller is given")
	}
	g := NewWithT(t)
	s := newAgent(t).serve(t, socketIn(runDir(t)))
	c, err := net.Dial("unix", s.socket)
	g.Expect(err).NotTo(HaveOccurred())
	defer c.Close()
	_, err = c.Write([]byte("GET / HT"))
	g.Expect(err).NotTo(HaveOccurred())
	began := time.Now()
	s.stop()
	err = <-s.ended
	s.ended <- nil
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(time.Since(began)).To(BeNumerically("<", 9*time.Second))
	_, err = net.Dial("unix", s.socket)
	g.Expect(err).To(HaveOccurred())
	g.Expect(errors.Is(err, os.ErrNotExist)).To(BeTrue())
}
