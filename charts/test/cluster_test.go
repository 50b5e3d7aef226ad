// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package charts

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/cli"
	"helm.sh/helm/v4/pkg/kube"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// patience limits the wait for a state of the API server, pace is the time between looks.
const (
	patience = 60 * time.Second
	pace     = 50 * time.Millisecond
)

// assets names the variable with the folder of kube-apiserver and etcd.
const assets = "KUBEBUILDER_ASSETS"

// cluster is a real API server of one test, with the releases of Helm on it.
type cluster struct {
	Gomega
	t          *testing.T
	kubeconfig string
	config     *rest.Config
	client     kubernetes.Interface
	objects    dynamic.Interface
}

// newCluster starts an API server with the namespace of the releases.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	dir := os.Getenv(assets)
	if dir == "" {
		t.Skip("NOT RUN: " + assets + " is not set: make ci SUITE=e2e-chart builds a control plane and sets it")
	}
	c := &cluster{Gomega: NewWithT(t), t: t, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	log.SetLogger(logr.Discard())
	env := &envtest.Environment{ControlPlaneStartTimeout: 90 * time.Second, ControlPlaneStopTimeout: 90 * time.Second}
	env.ControlPlane.Etcd = &envtest.Etcd{Path: c.bound(dir, "etcd")}
	env.ControlPlane.GetAPIServer().Path = c.bound(dir, "kube-apiserver")
	var err error
	c.config, err = env.Start()
	t.Cleanup(func() { c.Expect(env.Stop()).To(Succeed()) })
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(os.WriteFile(c.kubeconfig, env.KubeConfig, 0o600)).To(Succeed())
	c.config.QPS = -1 // a test does not slow itself down
	c.client, err = kubernetes.NewForConfig(c.config)
	c.Expect(err).NotTo(HaveOccurred())
	c.objects, err = dynamic.NewForConfig(c.config)
	c.Expect(err).NotTo(HaveOccurred())
	t.Setenv("KUBECACHEDIR", t.TempDir()) // of Helm's client: another server may have had this port
	c.namespace(namespace)
	c.Eventually(func() error { // the chart looks for it, and the API server makes it a little later
		_, err := c.client.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
		return err
	}, patience, pace).Should(Succeed())
	return c
}

// bound returns a program that ends with this process, which envtest's does not.
func (c *cluster) bound(dir, name string) string {
	program := filepath.Join(dir, name)
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		return program
	}
	path := filepath.Join(c.t.TempDir(), name)
	script := "#!/bin/sh\nexec " + setpriv + " --pdeathsig KILL " + program + " \"$@\"\n"
	c.Expect(os.WriteFile(path, []byte(script), 0o700)).To(Succeed())
	return path
}

func (c *cluster) namespace(name string) {
	c.t.Helper()
	ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := c.client.CoreV1().Namespaces().Create(c.t.Context(), ns, metav1.CreateOptions{})
	c.Expect(err).NotTo(HaveOccurred())
}

// accepts applies objects as a server-side dry run with strict validation, in which an
// unknown field or a second key of one name is an error.
func (c *cluster) accepts(all []unstructured.Unstructured) error {
	groups, err := restmapper.GetAPIGroupResources(c.client.Discovery())
	if err != nil {
		return err
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	for _, u := range all {
		kind := u.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return err
		}
		target := dynamic.ResourceInterface(c.objects.Resource(mapping.Resource))
		if u = *u.DeepCopy(); mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			u.SetNamespace(namespace)
			target = c.objects.Resource(mapping.Resource).Namespace(namespace)
		} else {
			u.SetNamespace("")
		}
		data, err := json.Marshal(u.Object)
		if err != nil {
			return err
		}
		_, err = target.Patch(c.t.Context(), u.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{
			FieldManager: "test", FieldValidation: metav1.FieldValidationStrict, DryRun: []string{metav1.DryRunAll}, Force: new(true),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// helm returns what Helm's actions need, for a namespace.
func (c *cluster) helm(namespace string) *action.Configuration {
	c.t.Helper()
	settings := cli.New()
	settings.KubeConfig = c.kubeconfig
	settings.SetNamespace(namespace)
	cfg := action.NewConfiguration()
	c.Expect(cfg.Init(settings.RESTClientGetter(), namespace, "secret")).To(Succeed())
	return cfg
}

// install does what helm install does.
func (c *cluster) install(name string, v values) error {
	c.t.Helper()
	return c.installIn(namespace, name, v)
}

func (c *cluster) installIn(namespace, name string, v values) error {
	c.t.Helper()
	install := action.NewInstall(c.helm(namespace))
	install.ReleaseName, install.Namespace, install.WaitStrategy = name, namespace, kube.HookOnlyStrategy
	_, err := install.Run(load(c.t, name), plain(c.t, v))
	return err
}

// upgrade does what helm upgrade does.
func (c *cluster) upgrade(name string, v values) error {
	c.t.Helper()
	upgrade := action.NewUpgrade(c.helm(namespace))
	upgrade.Namespace, upgrade.WaitStrategy = namespace, kube.HookOnlyStrategy
	_, err := upgrade.Run(name, load(c.t, name), plain(c.t, v))
	return err
}

// rollback does what helm rollback does: it goes back to a revision.
func (c *cluster) rollback(name string, revision int) error {
	c.t.Helper()
	rollback := action.NewRollback(c.helm(namespace))
	rollback.Version, rollback.WaitStrategy = revision, kube.HookOnlyStrategy
	return rollback.Run(name)
}

// uninstall does what helm uninstall does.
func (c *cluster) uninstall(name string) error {
	c.t.Helper()
	uninstall := action.NewUninstall(c.helm(namespace))
	uninstall.WaitStrategy = kube.HookOnlyStrategy
	_, err := uninstall.Run(name)
	return err
}
