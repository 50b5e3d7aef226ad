// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/cadastre/cadastre/internal/testkit/logbuffer"
	"github.com/cadastre/cadastre/operator"
)

// workload is a DaemonSet or a Deployment of a mode.
type workload struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Image   string
					Args    []string
					EnvFrom []struct {
						SecretRef *struct {
							Name     string
							Optional bool
						}
					}
				}
			}
		}
	}
}

// workloads returns those of a mode, by name, as kubectl applies them.
func workloads(t *testing.T, mode string) map[string]workload {
	t.Helper()
	if _, err := exec.LookPath("kubectl"); err != nil {
		t.Skip("NOT RUN: this machine has no kubectl, which builds kustomizations")
	}
	g := NewWithT(t)
	var stderr strings.Builder
	build := exec.CommandContext(t.Context(), "kubectl", "kustomize", mode)
	build.Stderr = &stderr
	text, err := build.Output()
	g.Expect(err).NotTo(HaveOccurred(), stderr.String())
	all := map[string]workload{}
	for object := range strings.SplitSeq(string(text), "\n---\n") {
		var w workload
		g.Expect(yaml.Unmarshal([]byte(object), &w)).To(Succeed())
		if w.Kind == "DaemonSet" || w.Kind == "Deployment" {
			all[w.Metadata.Name] = w
		}
	}
	return all
}

// flagsOf defines the flags of a cloud's provider that the manifests use.
func flagsOf(cloud string) func(*pflag.FlagSet) {
	return func(fs *pflag.FlagSet) { fs.String(cloud+"-cluster", "", "the cluster") }
}

// TestModesOfClouds: the programs with a cloud have their image, the credentials of the
// Secret and flags that the program accepts; the programs without one have no credentials.
func TestModesOfClouds(t *testing.T) {
	for mode, with := range map[string]string{
		"netresource-openstack": "cadastre-operator", "netresource-ec2": "cadastre-operator", "external-openstack": "cadastre-operator",
		"interfaces-openstack": "cadastre-agent", "interfaces-ec2": "cadastre-agent",
	} {
		t.Run(mode, func(t *testing.T) {
			g := NewWithT(t)
			_, cloud, _ := strings.Cut(mode, "-")
			all := workloads(t, mode)
			g.Expect(all).To(HaveLen(2))
			for name, w := range all {
				c := w.Spec.Template.Spec.Containers[0]
				if name != with {
					g.Expect(c.Image).To(Equal(name + ":0.1.0-dev"))
					g.Expect(c.EnvFrom).To(BeEmpty(), "%s has no use for the cloud's credentials", name)
					continue
				}
				g.Expect(c.Image).To(Equal(name + "-" + cloud + ":0.1.0-dev"))
				g.Expect(c.EnvFrom).To(HaveLen(1))
				g.Expect(c.EnvFrom[0].SecretRef.Name).To(Equal("cadastre-cloud"))
				g.Expect(filepath.Join("..", "providers", cloud)).To(BeADirectory())
			}
			opened := ""
			g.Expect(accepted(t, cloud, &opened, all["cadastre-operator"].Spec.Template.Spec.Containers[0].Args)).To(BeTrue())
			g.Expect(opened).To(Equal(map[string]string{"cadastre-operator": cloud}[with]), "the operator opens the cloud if it has the credentials")
			agentArgs(t, cloud, all["cadastre-agent"].Spec.Template.Spec.Containers[0].Args)
		})
	}
}

// accepted reports whether the operator accepts the flags of a mode, and sets opened to the
// cloud that it opens. It ends at once, since its context has ended.
func accepted(t *testing.T, cloud string, opened *string, args []string) bool {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	const none = `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}]}`
	NewWithT(t).Expect(os.WriteFile(kubeconfig, []byte(none), 0o600)).To(Succeed())
	var log logbuffer.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code := operator.Run(ctx, operator.Options{Args: append(args, "--bind-address=", "--kubeconfig="+kubeconfig), Stdout: &log, Stderr: &log},
		operator.WithProvider(operator.Provider{
			Name: cloud, Flags: flagsOf(cloud),
			Open: func(context.Context, operator.Environment) (operator.Opened, error) {
				*opened = cloud
				return operator.Opened{}, errors.New("this is a test")
			},
		}))
	t.Logf("exit code %d: %s", code, &log)
	return code != 2
}

// agentArgs fails for a flag that no agent with the cloud has.
func agentArgs(t *testing.T, cloud string, args []string) {
	t.Helper()
	fs := flag.NewFlagSet("agent", flag.ContinueOnError)
	for _, name := range []string{"config", "node-name", cloud + "-cluster"} {
		fs.String(name, "", "")
	}
	NewWithT(t).Expect(fs.Parse(args)).To(Succeed())
}

// TestEveryModeHasATest: a folder with a contiv.conf is a mode.
func TestEveryModeHasATest(t *testing.T) {
	g := NewWithT(t)
	all, err := filepath.Glob("*/contiv.conf")
	g.Expect(err).NotTo(HaveOccurred())
	var names []string
	for _, path := range all {
		names = append(names, filepath.Dir(path))
	}
	slices.Sort(names)
	g.Expect(names).To(Equal([]string{"derived-etcd", "derived-kubernetes", "external-etcd", "external-kubernetes", "external-openstack",
		"interfaces-ec2", "interfaces-openstack", "netresource-ec2", "netresource-kubernetes", "netresource-openstack", "vpp"}))
}
