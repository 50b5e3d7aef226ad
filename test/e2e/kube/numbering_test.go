// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/informers"

	"github.com/cadastre/cadastre/operator/nodeipam"
)

// numberer starts a controller that gives nodes their CIDRs, and ends it with the test.
// The returned function starts it again if it has ended by itself, as
// a cluster does with what runs in it.
type numberer struct {
	name  string
	start func(t *testing.T, c *cluster, o nodeipam.Options) (revive func())
}

// numberers are those that must do the same.
func numberers() []numberer {
	return []numberer{{"library", startLibrary}, {"operator", startOperator}}
}

// startLibrary runs an allocator in this process.
func startLibrary(t *testing.T, c *cluster, o nodeipam.Options) (revive func()) {
	t.Helper()
	g := NewWithT(t)
	settings, _, errs := o.Settings()
	g.Expect(errs).To(BeEmpty())
	factory := informers.NewSharedInformerFactory(c.client, 0)
	deps := nodeipam.Deps{Client: c.client, Nodes: factory.Core().V1().Nodes(), Log: slog.New(slog.DiscardHandler)}
	a, err := nodeipam.NewAllocator(deps, settings)
	g.Expect(err).NotTo(HaveOccurred())
	end, ended := make(chan struct{}), make(chan struct{})
	factory.Start(end)
	go func() {
		defer close(ended)
		a.Run(end)
		factory.Shutdown()
	}()
	t.Cleanup(func() {
		close(end)
		<-ended
	})
	return func() {} // it does not end
}

// flags are the options as flags that Kubernetes' controller manager has, too.
func flags(o nodeipam.Options) []string {
	all := []string{"--" + nodeipam.FlagAllocate + "=" + strconv.FormatBool(o.Allocate)}
	add := func(flag, value string) {
		if value != "" && value != "0" {
			all = append(all, "--"+flag+"="+value)
		}
	}
	add(nodeipam.FlagCluster, o.Cluster)
	add(nodeipam.FlagService, o.Service)
	add(nodeipam.FlagMask, strconv.Itoa(o.Mask))
	add(nodeipam.FlagMaskIPv4, strconv.Itoa(o.MaskIPv4))
	add(nodeipam.FlagMaskIPv6, strconv.Itoa(o.MaskIPv6))
	return all
}

// startUpstream runs Kubernetes' own controller manager with nothing but its
// nodeipam. It may ask as often as it likes, as ours may in these tests.
func startUpstream(t *testing.T, c *cluster, o nodeipam.Options) (revive func()) {
	return startManager(t, c, o, "--kube-api-qps=5000", "--kube-api-burst=5000")
}

// startManager is startUpstream with other limits.
func startManager(t *testing.T, c *cluster, o nodeipam.Options, limits ...string) (revive func()) {
	t.Helper()
	args := append(flags(o), "--kubeconfig="+c.kubeconfig, "--controllers=nodeipam", "--leader-elect=false",
		"--bind-address=127.0.0.1", fmt.Sprint("--secure-port=", freePort(t)), "--cert-dir="+t.TempDir())
	return revived(func() *process {
		program := filepath.Join(os.Getenv(assetsEnv), "kube-controller-manager")
		return startProcess(t, "kube-controller-manager", exec.Command(program, append(args, limits...)...))
	})
}

// startKubeControllers runs Kubernetes' own controller manager with these controllers.
func (c *cluster) startKubeControllers(names ...string) *process {
	c.t.Helper()
	return startProcess(c.t, "kube-controller-manager", exec.Command(filepath.Join(os.Getenv(assetsEnv), "kube-controller-manager"),
		"--kubeconfig="+c.kubeconfig, "--controllers="+strings.Join(names, ","), "--leader-elect=false",
		"--bind-address=127.0.0.1", fmt.Sprint("--secure-port=", freePort(c.t)), "--cert-dir="+c.t.TempDir()))
}

// revived starts a process, and what it answers does so again if it has ended.
func revived(start func() *process) (revive func()) {
	p := start()
	return func() {
		if p.hasEnded() != nil {
			p = start()
		}
	}
}

// startOperator runs our operator as a leader among others.
func startOperator(t *testing.T, c *cluster, o nodeipam.Options) (revive func()) {
	t.Helper()
	return revived(func() *process { return newOperator(t, c.kubeconfig, append(c.electing(o), "--kube-api-qps=-1")...) })
}

// beside are the flags that only we have.
func beside(o nodeipam.Options) []string {
	all := []string{fmt.Sprintf("--%s=%s", nodeipam.FlagCoolDown, o.CoolDown)}
	if len(o.MoreRanges) > 0 {
		all = append(all, "--"+nodeipam.FlagMoreRanges+"="+strings.Join(o.MoreRanges, ","))
	}
	if o.Order != "" {
		all = append(all, "--"+nodeipam.FlagOrder+"="+o.Order)
	}
	return all
}

// newOperator starts our operator with these flags.
func newOperator(t *testing.T, kubeconfig string, flags ...string) *process {
	t.Helper()
	return newOperatorOf(t, os.Getenv(binEnv), kubeconfig, flags...)
}

// newOperatorOf is newOperator with the program of a folder.
func newOperatorOf(t *testing.T, bin, kubeconfig string, flags ...string) *process {
	t.Helper()
	args := append([]string{"--kubeconfig=" + kubeconfig, "--bind-address="}, flags...)
	return startProcess(t, "cadastre-operator", exec.Command(filepath.Join(bin, "cadastre-operator"), args...))
}
