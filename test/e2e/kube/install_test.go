// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/generated/pageblocks"
)

// installation runs the blocks of a page of docs/install that need an API server only.
type installation struct {
	*cluster
	page *pageblocks.Page
	dir  string
}

// install opens a page and an API server, with the manifests of a release beside it.
func install(t *testing.T, page string, notRun map[string]string) installation {
	mayRun(t)
	c := openCluster(t, newPlane(t).kubeconfig)
	root := filepath.Join("..", "..", "..")
	p, err := pageblocks.Open(filepath.Join(root, "docs", "install", page), notRun)
	c.g.Expect(err).NotTo(HaveOccurred())
	i := installation{cluster: c, page: p, dir: t.TempDir()}
	archive := filepath.Join(i.dir, "cadastre_1.2.3_kubernetes.tar.gz") // the form of a release's
	tar := exec.CommandContext(t.Context(), "tar", "-C", root, "-czf", archive, "--transform=s/^k8s/cadastre_1.2.3_kubernetes/", "k8s")
	out, err := tar.CombinedOutput()
	c.g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	return i
}

func (i installation) take(language string) string {
	i.t.Helper()
	text, err := i.page.Take(language)
	i.g.Expect(err).NotTo(HaveOccurred())
	return text
}

// next runs the next block of shell commands. The API server refuses fields that it does not
// know. A deletion is not awaited: no controller manager empties the namespace.
func (i installation) next() {
	i.t.Helper()
	script := fmt.Sprintf(`kubectl() {
	verb=$1 && shift
	case $verb in
	apply) set -- --validate=strict "$@" ;;
	delete) set -- --wait=false "$@" ;;
	esac
	%q "$verb" --kubeconfig=%q "$@"
}
`, filepath.Join(os.Getenv(assetsEnv), "kubectl"), i.kubeconfig)
	text := i.take("sh")
	cmd := exec.CommandContext(i.t.Context(), "sh", "-e", "-c", script+text)
	cmd.Dir = i.dir
	out, err := cmd.CombinedOutput()
	i.g.Expect(err).NotTo(HaveOccurred(), "%s%s", text, out)
}

func (i installation) rest() {
	i.t.Helper()
	notRun, err := i.page.Rest()
	i.g.Expect(err).NotTo(HaveOccurred())
	for _, line := range notRun {
		i.t.Log(line)
	}
}

// agentFolders returns the paths of the node that the agent's pod mounts, by volume.
func (i installation) agentFolders() map[string]string {
	i.t.Helper()
	set, err := i.client.AppsV1().DaemonSets(namespace).Get(i.t.Context(), "cadastre-agent", getOptions())
	i.g.Expect(err).NotTo(HaveOccurred())
	folders := map[string]string{}
	for _, v := range set.Spec.Template.Spec.Volumes {
		if v.HostPath != nil {
			folders[v.Name] = v.HostPath.Path
		}
	}
	return folders
}

// expectGone: the API server has no DaemonSet of the agent any more.
func (i installation) expectGone() {
	i.t.Helper()
	_, err := i.client.AppsV1().DaemonSets(namespace).Get(i.t.Context(), "cadastre-agent", getOptions())
	i.g.Expect(err).To(MatchError(ContainSubstring("not found")))
}

// The first lines of blocks that need nodes.
const (
	importImages = "for image in cadastre-*.oci.tar; do ctr --namespace k8s.io images import \"$image\"; done"
	seePods      = "kubectl -n cadastre-system rollout status daemonset/cadastre-agent"
	commandLine  = "tar -xf cadastre_*_linux_amd64.tar.gz -C /usr/local --strip-components=1 --wildcards '*/bin/cadastre' '*/bin/kubectl-cadastre'"
	unpacked     = "writes into the machine's folders; make ci SUITE=e2e-release unpacks an archive with this line"
	namespaced   = "kubectl apply -f cadastre_*_kubernetes/base/namespace.yaml"
	helm         = "make ci SUITE=e2e-chart installs the charts; make ci SUITE=e2e-release builds these files"
	onNodes      = "this API server has no nodes; make ci SUITE=e2e-node runs pods of the same manifests and images with kubelet and containerd"
)

func TestInstallWithKubeadm(t *testing.T) {
	i := install(t, "kubeadm.md", map[string]string{
		"kubeadm init --service-cidr=10.96.0.0/12": "kubeadm pulls the images of a control plane from a registry",
		importImages: onNodes,
		seePods:      onNodes,
		commandLine:  unpacked,
		namespaced:   helm,
		"kubectl -n cadastre-uninstall rollout status daemonset/cadastre-uninstall": onNodes,
	})
	i.next()
	i.g.Expect(i.agentFolders()).To(And(HaveKeyWithValue("cni-bin", "/opt/cni/bin"), HaveKeyWithValue("cni-conf", "/etc/cni/net.d")))
	i.next()
	i.expectGone()
	_, err := i.client.AppsV1().DaemonSets("cadastre-uninstall").Get(t.Context(), "cadastre-uninstall", getOptions())
	i.g.Expect(err).NotTo(HaveOccurred())
	i.rest()
}

func TestInstallWithK3s(t *testing.T) {
	const binary = "k3s is not a module of Go that can be built alone, nor a package of Debian"
	i := install(t, "k3s.md", map[string]string{
		"k3s server --flannel-backend=none --disable-network-policy --service-cidr=10.96.0.0/12 --cluster-cidr=10.1.0.0/16": binary,
		"for image in cadastre-*.oci.tar; do k3s ctr images import \"$image\"; done":                                        binary,
		seePods:     onNodes,
		commandLine: unpacked,
		"kubectl -n cadastre-uninstall rollout status daemonset/cadastre-uninstall": onNodes,
	})
	i.next()
	i.g.Expect(os.WriteFile(filepath.Join(i.dir, "cadastre-k3s", "kustomization.yaml"), []byte(i.take("yaml")), 0o600)).To(Succeed())
	i.next()
	i.g.Expect(i.agentFolders()).To(And(
		HaveKeyWithValue("cni-bin", "/var/lib/rancher/k3s/data/cni"),
		HaveKeyWithValue("cni-conf", "/var/lib/rancher/k3s/agent/etc/cni/net.d"),
	))
	i.next()
	i.expectGone()
	_, err := i.client.AppsV1().DaemonSets("cadastre-uninstall").Get(t.Context(), "cadastre-uninstall", getOptions())
	i.g.Expect(err).NotTo(HaveOccurred())
	i.rest()
}

func TestInstallWithKind(t *testing.T) {
	const engine = "kind needs an image of a node from a registry"
	i := install(t, "kind.md", map[string]string{
		"kind create cluster --config kind.yaml": engine,
		"kind delete cluster":                    engine,
		seePods:                                  onNodes,
		commandLine:                              unpacked,
	})
	i.take("yaml")
	i.next()
	i.g.Expect(i.agentFolders()).To(HaveKeyWithValue("cni-bin", "/opt/cni/bin"))
	i.rest()
}
