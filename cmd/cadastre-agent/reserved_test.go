// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/agent"
	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/internal/testkit/logbuffer"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// soon bounds what a slow machine may take.
const soon = 5 * time.Minute

// program is the whole agent, with the paths of one node.
type program struct {
	g    Gomega
	dir  string
	stop context.CancelFunc
	code chan int
	log  *logbuffer.Buffer
}

func newProgram(t *testing.T) *program {
	p := &program{g: NewWithT(t), dir: t.TempDir(), log: &logbuffer.Buffer{}}
	t.Cleanup(p.end)
	return p
}

// start runs the agent with a configuration.
func (p *program) start(conf string) {
	path := filepath.Join(p.dir, "contiv.conf")
	p.g.Expect(os.WriteFile(path, []byte(conf), 0o600)).To(Succeed())
	ctx, stop := context.WithCancel(context.Background())
	p.stop, p.code = stop, make(chan int, 1)
	args := []string{"--config", path, "--node-name", "a", "--state-dir", filepath.Join(p.dir, "state"), "--run-dir", filepath.Join(p.dir, "run")}
	go func() {
		p.code <- agent.Main(ctx, agent.Program{Name: "cadastre-agent", Args: args, Stderr: p.log})
	}()
}

func (p *program) end() {
	if p.stop == nil {
		return
	}
	p.stop()
	p.stop = nil
	p.g.Expect(<-p.code).To(BeZero(), p.log.String())
}

// call is a request on the agent's socket.
func (p *program) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(p.dir, "run", "agent.sock"))
	}}}
}

func (p *program) call(method, path string, body any) (code int, answer string) {
	data, err := json.Marshal(body)
	p.g.Expect(err).NotTo(HaveOccurred())
	req, err := http.NewRequestWithContext(context.Background(), method, "http://agent"+path, bytes.NewReader(data))
	p.g.Expect(err).NotTo(HaveOccurred())
	reply, err := p.client().Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	p.g.Expect(err).NotTo(HaveOccurred())
	return reply.StatusCode, string(text)
}

func (p *program) isReady() {
	p.g.Eventually(func() int { code, _ := p.call("GET", localapi.PathReadyz, nil); return code }, soon, 10*time.Millisecond).Should(Equal(http.StatusOK), p.log.String())
}

// add returns the address of the ADD of a container.
func (p *program) add(container string) string {
	reply, err := cniclient.Ask(context.Background(), p.client().Do, cni.Request{
		Command: "ADD", Network: "pods", ContainerID: container, IfName: "eth0", Netns: "/run/netns/" + container,
		Pod: cni.Pod{Namespace: "default", Name: container},
	})
	p.g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	return cniclient.Address(reply)
}

const doubtfulAddresses = `
ipamConfig: {vxlanCIDR: 169.254.30.0/24}
nodeConfig: [{nodeName: b, mainVPPInterface: {ip: 10.1.9.1/24}}, {nodeName: c, mainVPPInterface: {ip: 192.168.16.77/24}}]
`

func TestANewNodeRefusesDoubtfulAddresses(t *testing.T) {
	p := newProgram(t)
	for range 2 { // also when its supervisor tries again
		p.start(doubtfulAddresses)
		p.g.Eventually(p.code, soon).Should(Receive(Equal(1)))
		p.stop()
		p.stop = nil
	}
	for _, want := range []string{"contiv.conf", "ipamConfig.vxlanCIDR", "169.254.0.0/16 (link-local)", "nodeConfig[0].mainVPPInterface.ip"} {
		p.g.Expect(p.log.String()).To(ContainSubstring(want))
	}
	p.g.Expect(p.log.String()).NotTo(ContainSubstring("nodeConfig[1]"), "that one is claimed in the store before it is used")
}

// A node that runs with such a configuration is upgraded.
func TestANodeInUseGoesOnWithDoubtfulAddresses(t *testing.T) {
	p := newProgram(t)
	p.start("{}")
	p.isReady()
	before := p.add("web")
	p.g.Expect(before).To(Equal("10.1.1.2"))
	p.end()

	p.start(doubtfulAddresses)
	p.isReady()
	p.g.Expect(p.add("web")).To(Equal(before), "the lease is there")
	p.g.Expect(p.add("db")).To(Equal("10.1.1.3"))
	_, status := p.call("GET", localapi.PathStatus, nil)
	for _, want := range []string{"169.254.30.0/24", "10.1.9.1/24", "192.168.16.77/24"} {
		p.g.Expect(status).To(ContainSubstring(want))
		p.g.Expect(p.log.String()).To(ContainSubstring(want))
	}
}
