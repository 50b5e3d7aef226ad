// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// stand stops the process of an agent; its socket still takes connections.
func (a *agent) stand(t *testing.T) {
	t.Helper()
	if err := a.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}

// goOn continues a process that stands.
func (a *agent) goOn(t *testing.T) {
	t.Helper()
	if err := a.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// dropped sends a request, and hangs up at once.
func dropped(socket string, req cni.Request) error {
	conn, err := sent(socket, req)
	if err != nil {
		return fmt.Errorf("%s: %w", req.Command, err)
	}
	return conn.Close()
}

// sent sends a request on a connection of its own. The kernel passes connections on to the
// agent in the order of the calls.
func sent(socket string, req cni.Request) (net.Conn, error) {
	conn, err := net.DialTimeout("unix", socket, patience)
	if err != nil {
		return nil, err
	}
	body := cniclient.Body(req)
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: cadastre\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", cni.Path, len(body), body)
	return conn, err
}

// answer reads the answer to a request that was sent.
func answer(conn net.Conn) (reply, error) {
	defer conn.Close()
	data, err := readAll(conn.(*net.UnixConn), 3*patience, leaving{})
	if err != nil {
		return reply{}, err
	}
	resp, err := response(data)
	if err != nil {
		return reply{}, err
	}
	return replyOf(resp)
}

// missing are the attachments that hold none of the addresses that they were told.
func missing(socket string, told map[Key]string) (gone []string, err error) {
	book, _, err := readBook(socket)
	for k, addr := range told {
		if !slices.ContainsFunc(book, func(h holding) bool { return h.Key == k && h.Addr.String() == addr }) {
			gone = append(gone, fmt.Sprintf("%s of %s", addr, k))
		}
	}
	return gone, err
}

// A DEL whose caller hangs up, and then an ADD of the same attachment, arrive while the
// agent stands still, as on a starved node. An ADD that is answered keeps its lease, and
// no other pod gets the address.
func TestAnAnsweredADDOutlivesAnEarlierDEL(t *testing.T) {
	for name, c := range map[string]struct {
		kill bool
		each int
	}{
		"the agent goes on":     {false, 20},
		"and is killed at once": {true, 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			n := newNode(t, roomyConf)
			a := n.start(t)
			rounds := effort.Times(t, 6)
			attack.Begin(t, attack.Linear).Add(2 * rounds * c.each)
			told := map[Key]string{}
			for round := range rounds {
				var conns []net.Conn
				var keys []Key
				a.stand(t)
				for i := range c.each {
					k := Key{"net", fmt.Sprintf("o%d-%d", round, i), "eth0"}
					g.Expect(dropped(n.socket(), k.request(Del))).To(Succeed())
					conn, err := sent(n.socket(), k.request(Add))
					g.Expect(err).NotTo(HaveOccurred())
					conns, keys = append(conns, conn), append(keys, k)
				}
				a.goOn(t)
				for i, conn := range conns {
					r, err := answer(conn)
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(r.Error).To(BeNil(), "ADD %s", keys[i])
					addrs, err := addresses(r.IPs)
					g.Expect(err).NotTo(HaveOccurred())
					told[keys[i]] = addrs[0].String()
				}
				if c.kill {
					a.kill()
					a = n.start(t)
				}
				// The loop is first come, first served: with this DEL, all before it is done.
				_, f, err := ask(n.socket(), Key{"fence", "fence", "eth0"}.request(Del), leaving{})
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(f).To(Equal(Answered))
				g.Expect(missing(n.socket(), told)).To(BeEmpty())
			}
			g.Expect(a.stop()).To(Succeed())
		})
	}
}

// The mirror image: an ADD that is given up, and then the DEL of the attachment. Nothing
// stays held, also if the agent is killed at once, and no runtime can be asked.
func TestADELAfterAnADDThatWasGivenUpFreesIt(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, roomyConf)
	a := n.start(t)
	rounds := effort.Times(t, 8)
	const each = 40
	attack.Begin(t, attack.Kill).Add(rounds)
	for round := range rounds {
		var conns []net.Conn
		var freed []Key // whose DEL is answered
		a.stand(t)
		for i := range each {
			k := Key{"net", fmt.Sprintf("g%d-%d", round, i), "eth0"}
			g.Expect(dropped(n.socket(), k.request(Add))).To(Succeed())
			conn, err := sent(n.socket(), k.request(Del))
			g.Expect(err).NotTo(HaveOccurred())
			conns = append(conns, conn)
		}
		a.goOn(t)
		for i, conn := range conns {
			r, err := answer(conn)
			switch {
			case i == 0:
				g.Expect(err).NotTo(HaveOccurred())
				a.kill() // while it serves the others
			case err != nil:
				continue // it was killed with this one
			}
			g.Expect(r.Error).To(BeNil())
			freed = append(freed, Key{"net", fmt.Sprintf("g%d-%d", round, i), "eth0"})
		}
		a = n.start(t)
		book, _, err := readBook(n.socket())
		g.Expect(err).NotTo(HaveOccurred())
		for _, h := range book {
			g.Expect(freed).NotTo(ContainElement(h.Key), "%s is held, and no DEL will come", h.Addr)
		}
	}
	g.Expect(a.stop()).To(Succeed())
}

// The same with the real plugin: the runtime kills the plugin of its DEL, and adds the
// attachment again.
func TestAnAnsweredADDOutlivesThePluginOfAnEarlierDEL(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, roomyConf)
	a := n.start(t)
	rounds := effort.Times(t, 2)
	const each = 8
	attack.Begin(t, attack.Linear).Add(2 * rounds * each)
	for round := range rounds {
		var mu sync.Mutex
		told, errs := map[Key]string{}, []error(nil)
		var wg sync.WaitGroup
		a.stand(t)
		for i := range each {
			k := Key{"net", fmt.Sprintf("p%d-%d", round, i), "eth0"}
			g.Expect(killedPlugin(n.socket(), k, Del)).To(Succeed())
			wg.Go(func() {
				r, f, err := run(n.socket(), k, Add, nil)
				mu.Lock()
				defer mu.Unlock()
				if err != nil || f != Answered {
					errs = append(errs, fmt.Errorf("ADD %s: %s: %w", k, f, err))
					return
				}
				addrs, err := addresses(r.IPs)
				errs = append(errs, err)
				told[k] = addrs[0].String()
			})
		}
		a.goOn(t)
		wg.Wait()
		g.Expect(errors.Join(errs...)).NotTo(HaveOccurred())
		_, f, err := ask(n.socket(), Key{"fence", "fence", "eth0"}.request(Del), leaving{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(f).To(Equal(Answered))
		g.Expect(missing(n.socket(), told)).To(BeEmpty())
	}
	g.Expect(a.stop()).To(Succeed())
}

// awaitReading returns when a process waits for what it reads from a socket.
func awaitReading(pid int) error {
	for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(time.Millisecond) {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
		if err != nil {
			return err
		}
		for _, task := range tasks {
			var nr int
			var fd uint64
			text, err := os.ReadFile(task)
			if err != nil {
				continue // the thread has ended
			}
			if n, _ := fmt.Sscanf(string(text), "%d 0x%x", &nr, &fd); n != 2 || nr != syscall.SYS_READ {
				continue
			}
			file, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
			if err == nil && strings.HasPrefix(file, "socket:") {
				return nil
			}
		}
	}
	return fmt.Errorf("process %d does not wait for an answer", pid)
}

// killedPlugin starts cadastre-cni, and kills it when it has sent its request to an agent
// that stands still.
func killedPlugin(socket string, k Key, v Verb) error {
	cmd, err := pluginCommand(socket, k, v, "/run/netns/"+k.ContainerID, nil)
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := awaitReading(cmd.Process.Pid); err != nil {
		return err
	}
	err = cmd.Process.Kill()
	var exit *exec.ExitError
	if werr := cmd.Wait(); !errors.As(werr, &exit) {
		err = errors.Join(err, fmt.Errorf("cadastre-cni ended before it was killed: %w", werr))
	}
	return err
}
