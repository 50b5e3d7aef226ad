// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spf13/pflag"

	"github.com/cadastre/cadastre/agent"
)

func TestAProgramWithoutACloudNamesThoseThatHaveOne(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "contiv.conf")
	g.Expect(os.WriteFile(path, []byte("cadastre: {podBlocks: interfaces}"), 0o600)).To(Succeed())
	var text bytes.Buffer
	code := agent.Main(context.Background(), agent.Program{Name: "cadastre-agent", Args: []string{"--config", path, "--node-name", "a"}, Stderr: &text})
	g.Expect(code).To(Equal(1))
	g.Expect(text.String()).To(And(ContainSubstring("cadastre-agent-openstack"), ContainSubstring("cadastre-agent-ec2"), ContainSubstring("interfaces")))
}

func TestAProgramHasTheFlagsOfItsCloud(t *testing.T) {
	g := NewWithT(t)
	network, insecure := "", false
	var tags []string
	p := agent.CloudProvider{Name: "sky", Help: "addresses of the sky", Flags: func(fs *pflag.FlagSet) {
		fs.StringVar(&network, "sky-network", "default", "the network")
		fs.BoolVar(&insecure, "sky-insecure", false, "no TLS")
		fs.StringSliceVar(&tags, "sky-tags", nil, "the tags")
	}}
	var text bytes.Buffer
	run := func(args ...string) int {
		return agent.Main(context.Background(), agent.Program{Name: "cadastre-agent-sky", Args: args, Stderr: &text, Cloud: &p})
	}
	g.Expect(run("--help")).To(BeZero())
	g.Expect(text.String()).To(And(ContainSubstring("addresses of the sky"), ContainSubstring("sky-network"), ContainSubstring("provider-qps"), ContainSubstring("sky-tags")))
	g.Expect(text.String()).NotTo(ContainSubstring("panic"))
	g.Expect(run("--sky-network=blue", "--sky-insecure", "--sky-tags=a,b", "--config", "/nowhere")).To(Equal(1))
	g.Expect(network).To(Equal("blue"))
	g.Expect(insecure).To(BeTrue())
	g.Expect(tags).To(Equal([]string{"a", "b"}))
}
