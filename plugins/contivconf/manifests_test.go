// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

// TestMetricsInTheManifests: agents of every mode listen for their own node. With the
// lines that are comments, and component metrics, they listen for the cluster: where
// the annotations say, with the certificate that is mounted.
func TestMetricsInTheManifests(t *testing.T) {
	g := gomega.NewWithT(t)
	text, err := os.ReadFile("../../k8s/components/metrics/kustomization.yaml")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	var component struct{ Patches []struct{ Patch string } }
	g.Expect(yaml.Unmarshal(text, &component)).To(gomega.Succeed())
	var agent struct {
		Kind string
		Spec struct {
			Template struct {
				Metadata struct{ Annotations map[string]string }
				Spec     struct {
					Containers []struct{ VolumeMounts []struct{ MountPath string } }
				}
			}
		}
	}
	g.Expect(yaml.Unmarshal([]byte(component.Patches[0].Patch), &agent)).To(gomega.Succeed())
	g.Expect(agent.Kind).To(gomega.Equal("DaemonSet"))
	annotations, mount := agent.Spec.Template.Metadata.Annotations, agent.Spec.Template.Spec.Containers[0].VolumeMounts[0].MountPath

	modes, err := filepath.Glob("../../k8s/*/contiv.conf")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(modes).To(gomega.HaveLen(11))
	for _, mode := range modes {
		shipped, _, err := Load(mode)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		want := Default().Cadastre.Metrics
		want.Enabled = true
		g.Expect(shipped.Cadastre.Metrics).To(gomega.Equal(want), mode)

		text, err := os.ReadFile(mode)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		path := filepath.Join(t.TempDir(), "contiv.conf")
		g.Expect(os.WriteFile(path, uncommented(text), 0o600)).To(gomega.Succeed())
		public, _, err := Load(path)
		g.Expect(err).NotTo(gomega.HaveOccurred(), mode)
		g.Expect(public.Cadastre.Metrics).To(gomega.Equal(Metrics{
			Enabled: true, Listen: ":" + annotations["prometheus.io/port"], Cert: mount + "/tls.crt", Key: mount + "/tls.key",
		}), mode)
	}
}
