// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// supervisor starts an agent as systemd does.
type supervisor struct {
	Gomega
	t     *testing.T
	agent string
	dir   string
	unit  unit // the socket's
}

func newSupervisor(t *testing.T, agent string) *supervisor {
	dir, err := os.MkdirTemp("", "cadastre-") // a test's own is too long for a socket
	s := &supervisor{Gomega: NewWithT(t), t: t, agent: agent, dir: dir}
	s.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.unit = read(s, socket)
	conf := "cadastre:\n  docker:\n    enabled: true\n    socket: " + s.own() + "\n"
	s.Expect(os.WriteFile(s.path("conf"), []byte(conf), 0o600)).To(Succeed())
	return s
}

func (s *supervisor) path(name string) string { return filepath.Join(s.dir, name) }

// own is the socket that the agent makes where it is handed none.
func (s *supervisor) own() string { return s.path("own.sock") }

// listen opens a socket that stays when the agent ends.
func (s *supervisor) listen(name string) *os.File {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.path(name), Net: "unix"})
	s.Expect(err).NotTo(HaveOccurred())
	l.SetUnlinkOnClose(false)
	file, err := l.File()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(l.Close()).To(Succeed()) // the file is another one
	s.t.Cleanup(func() { _ = file.Close() })
	return file
}

// start starts the agent as the unit says, with files from number 3 on. pid is
// what LISTEN_PID is, as a shell writes it: only the process itself knows it.
func (s *supervisor) start(pid, names string, files ...*os.File) (end func(), log *bytes.Buffer) {
	args := []string{"-c", "LISTEN_PID=" + pid + ` exec "$@"`, "agent"}
	if setpriv, err := exec.LookPath("setpriv"); err == nil && os.Geteuid() == 0 { // what the unit leaves of root
		args = append(args, setpriv, "--inh-caps=-all", "--bounding-set="+capabilities(s.Gomega), "--no-new-privs")
	}
	cmd := exec.Command("sh", append(args, s.agent, "--config="+s.path("conf"), "--state-dir="+s.path("state"), "--run-dir="+s.path("run"), "--node-name=node-1")...)
	log = new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, files
	cmd.Env = append(os.Environ(), fmt.Sprintf("LISTEN_FDS=%d", len(files)), "LISTEN_FDNAMES="+names)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.Expect(cmd.Start()).To(Succeed())
	return func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(5*time.Minute, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		s.Expect(late.Stop()).To(BeTrue(), "the agent does not end: %s", log)
		s.Expect(err).NotTo(HaveOccurred(), "%s", log)
	}, log
}

// capabilities returns what the unit leaves of root's, as setpriv takes it.
func capabilities(g Gomega) string {
	all := "-all"
	for name := range strings.FieldsSeq(read(g, service).one(g, "Service.CapabilityBoundingSet")) {
		all += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
	}
	return all
}

// ask asks what an engine asks first; the socket's queue holds it until
// a program accepts.
func (s *supervisor) ask(name string) chan string {
	answer := make(chan string, 1)
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.path(name))
	}}
	go func() {
		client := &http.Client{Transport: transport, Timeout: 5 * time.Minute}
		resp, err := client.Post("http://plugin.moby.localhost/IpamDriver.GetDefaultAddressSpaces", "", nil)
		if err != nil {
			answer <- err.Error()
			return
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		answer <- string(body)
	}()
	return answer
}

// testSockets: the engine is there first, the agent uses the socket whose name
// is the unit's and no other, and leaves it where it is.
func testSockets(t *testing.T, agent string) {
	const spaces = "LocalDefault"
	for what, x := range map[string]struct {
		pid, names string
		files      []string
		answers    string
	}{
		"handed":            {"$$", "docker", []string{"a"}, "a"},
		"handed among more": {"$$", "other:docker", []string{"a", "b"}, "b"},
		"of another name":   {"$$", "api", []string{"a"}, "own.sock"},
		"without names":     {"$$", "", []string{"a"}, "own.sock"},
		"for another":       {"1", "docker", []string{"a"}, "own.sock"},
		"none":              {"$$", "", nil, "own.sock"},
	} {
		t.Run(what, func(t *testing.T) {
			s := newSupervisor(t, agent)
			s.Expect(s.unit.one(s, "Socket.FileDescriptorName")).To(Equal("docker"))
			var files []*os.File
			for _, name := range x.files {
				files = append(files, s.listen(name))
			}
			if x.answers == "own.sock" {
				end, log := s.start(x.pid, x.names, files...)
				s.Eventually(s.own(), "30s").Should(BeAnExistingFile(), "%s", log)
				s.Expect(<-s.ask(x.answers)).To(ContainSubstring(spaces), "%s", log)
				end()
				return
			}
			for range 2 { // a second agent has it from the same supervisor
				answer := s.ask(x.answers)
				s.Consistently(answer, "50ms").ShouldNot(Receive())
				end, log := s.start(x.pid, x.names, files...)
				s.Expect(<-answer).To(ContainSubstring(spaces), "%s", log)
				s.Expect(s.own()).NotTo(BeAnExistingFile())
				end()
				s.Expect(s.path(x.answers)).To(BeAnExistingFile(), "it is the supervisor's")
			}
		})
	}
}

// testNoSocket hands over a file that is not a socket, which the error names.
func testNoSocket(t *testing.T, agent string) {
	s := newSupervisor(t, agent)
	file, err := os.Open(s.path("conf"))
	s.Expect(err).NotTo(HaveOccurred())
	defer file.Close()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `LISTEN_PID=$$ exec "$@"`, "agent", agent, "--config="+s.path("conf"), "--state-dir="+s.path("state"), "--run-dir="+s.path("run"))
	cmd.ExtraFiles, cmd.Env = []*os.File{file}, append(os.Environ(), "LISTEN_FDS=1", "LISTEN_FDNAMES=docker")
	out, err := cmd.CombinedOutput()
	s.Expect(err).To(HaveOccurred())
	s.Expect(string(out)).To(ContainSubstring(`use the socket \"docker\" that was opened for this process`))
	cmd = exec.CommandContext(t.Context(), "sh", "-c", `LISTEN_PID=$$ exec "$@"`, "agent", agent, "--config="+s.path("conf"), "--state-dir="+s.path("state"), "--run-dir="+s.path("run"))
	cmd.Env = append(os.Environ(), "LISTEN_FDS=many", "LISTEN_FDNAMES=docker")
	out, err = cmd.CombinedOutput()
	s.Expect(err).To(HaveOccurred())
	s.Expect(string(out)).To(ContainSubstring("is not a number"))
}
