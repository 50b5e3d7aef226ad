// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package commands tests the programs as an administrator runs them: an agent, the
// command line, and Docker's plugin are processes, and the test knows their
// sockets, their output and their exit codes only. It has tests only.
//
// Example: a pool that the Docker engine has requested is listed.
//
//	m := newMachine(t, dockerConf)
//	m.startAgent()
//	engine{m, m.path("docker.sock")}.pool("10.50.0.0/24")
//	m.Expect(m.cadastre("docker", "pools")).To(HaveField("Out", ContainSubstring("10.50.0.0/24")))
package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// binEnv names the directory of the programs.
const binEnv = "COMMANDS_BIN"

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "commands-bin-")
	if err == nil {
		err = errors.Join(stage.Build(context.Background(), ".", dir, "../../cmd/cadastre-agent", "../../cmd/cadastre-cni", "../../cmd/cadastre", "../../cmd/cadastre-docker-plugin"),
			os.Setenv(binEnv, dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "commands:", err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// awaited bounds the wait for another process; it decides no result.
const awaited = "60s"

// machine is a directory with the files of the programs that run on one node.
type machine struct {
	Gomega
	t      *testing.T
	dir    string
	socket string // of the program that cadastre asks
}

func newMachine(t *testing.T, conf string) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "cmd") // a test's own is too long for a socket
	m := &machine{Gomega: NewWithT(t), t: t, dir: dir}
	m.Expect(errors.Join(err, stage.LookAtSources("../.."))).To(Succeed())
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m.socket = m.path("run/agent.sock")
	m.write("contiv.conf", strings.ReplaceAll(conf, "DIR", dir))
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) write(name, text string) {
	m.Expect(os.WriteFile(m.path(name), []byte(text), 0o600)).To(Succeed())
}

// start runs a program until the test ends, or the function it returns is called.
func (m *machine) start(name string, args ...string) (stop func()) {
	log, err := os.Create(m.path(name + ".log"))
	m.Expect(err).NotTo(HaveOccurred())
	cmd := exec.Command(filepath.Join(os.Getenv(binEnv), name), args...)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := stage.Start(cmd, func(f func() error) error { return f() })
	m.Expect(err).NotTo(HaveOccurred())
	m.Expect(log.Close()).To(Succeed())
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Signal(syscall.SIGTERM)
			<-p.Done()
		}
	}
	m.t.Cleanup(func() {
		stop()
		if m.t.Failed() {
			text, _ := os.ReadFile(m.path(name + ".log"))
			m.t.Logf("%s:\n%s", name, text)
		}
	})
	return stop
}

// startAgent starts the agent and waits until it is ready.
func (m *machine) startAgent() (stop func()) {
	stop = m.launchAgent()
	m.awaitReady()
	return stop
}

func (m *machine) launchAgent() (stop func()) {
	return m.start("cadastre-agent", "--config", m.path("contiv.conf"), "--node-name", "node-1", "--state-dir", m.path("state"), "--run-dir", m.path("run"))
}

func (m *machine) awaitReady() {
	m.Eventually(func() outcome { return m.cadastre("status", "--ready") }, awaited).Should(HaveField("Code", 0))
}

// outcome holds the result of a call of a program.
type outcome struct {
	Code     int
	Out, Err string
}

// cadastre runs the command line without an answer to its questions.
func (m *machine) cadastre(args ...string) outcome { return m.run(nil, "", "cadastre", args...) }

func (m *machine) run(env []string, stdin, name string, args ...string) outcome {
	cmd := exec.Command(filepath.Join(os.Getenv(binEnv), name), args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = strings.NewReader(stdin), &out, &errs, m.dir
	cmd.Env = append(append(os.Environ(), "CADASTRE_SOCKET="+m.socket), env...)
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		m.Expect(err).NotTo(HaveOccurred())
	}
	return outcome{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// pod runs the CNI plugin for a container of a pod, as a main plugin does.
func (m *machine) pod(command, container string) outcome {
	conf := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "type": "bridge", "ipam": {"type": "cadastre-cni", "socket": %q}}`, m.socket)
	return m.run([]string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + container, "CNI_NETNS=/run/netns/" + container, "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + container,
	}, conf, "cadastre-cni")
}

// via returns a client of the server on a unix socket.
func via(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
}

// engine calls Docker's remote IPAM protocol on a socket, as the engine does.
type engine struct {
	*machine
	at string // the socket
}

// post calls a method and returns one field of the answer, or the error in it.
func (e engine) post(method string, args map[string]any, field string) string {
	body, err := json.Marshal(args)
	e.Expect(err).NotTo(HaveOccurred())
	resp, err := via(e.at).Post("http://plugin.moby.localhost/"+method, "", bytes.NewReader(body))
	e.Expect(err).NotTo(HaveOccurred())
	text, err := io.ReadAll(resp.Body)
	e.Expect(errors.Join(err, resp.Body.Close())).To(Succeed())
	var answer map[string]any
	e.Expect(json.Unmarshal(text, &answer)).To(Succeed(), "%s", text)
	if resp.StatusCode != http.StatusOK {
		return fmt.Sprint(answer["Err"])
	}
	return fmt.Sprint(answer[field])
}

func (e engine) pool(prefix string) string {
	space := e.post("IpamDriver.GetDefaultAddressSpaces", nil, "LocalDefaultAddressSpace")
	return e.post("IpamDriver.RequestPool", map[string]any{"AddressSpace": space, "Pool": prefix}, "PoolID")
}

func (e engine) address(pool string, options map[string]string) string {
	return e.post("IpamDriver.RequestAddress", map[string]any{"PoolID": pool, "Options": options}, "Address")
}

// gateway requests the gateway of a pool, container an address for an endpoint.
func (e engine) gateway(pool string) string {
	return e.address(pool, map[string]string{"RequestAddressType": "com.docker.network.gateway"})
}

func (e engine) container(pool, mac string) string {
	return e.address(pool, map[string]string{"com.docker.network.endpoint.macaddress": mac})
}
