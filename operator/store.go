// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cadastre/cadastre/internal/version"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
)

// clients holds the clients of the API server.
type clients struct {
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	leases  coordination.LeasesGetter // with a timeout shorter than the lease
	config  *rest.Config              // the base of all clients; nil in tests
}

// connect returns clients. It sends no request.
func connect(o commandLine) (c clients, err error) {
	if c.config, err = restConfig(o.kubeconfig); err != nil {
		return c, err
	}
	c.config.UserAgent = "cadastre-operator/" + version.Current()
	c.config.QPS, c.config.Burst = o.qps, o.burst
	typed, leases := rest.CopyConfig(c.config), rest.CopyConfig(c.config)
	typed.ContentType = runtime.ContentTypeProtobuf
	typed.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	leases.Timeout = o.elect.renewDeadline / 2
	var errs [3]error
	c.kube, errs[0] = kubernetes.NewForConfig(typed)
	c.dynamic, errs[1] = dynamic.NewForConfig(c.config)
	elections, err := kubernetes.NewForConfig(leases)
	if errs[2] = err; err == nil {
		c.leases = elections.CoordinationV1()
	}
	if err := errors.Join(errs[:]...); err != nil {
		return c, fmt.Errorf("create clients of the API server %s: %w", c.config.Host, err)
	}
	return c, nil
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		c, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("--%s=\"\": outside of a pod, want a kubeconfig file: %w", flagKubeconfig, err)
		}
		return c, nil
	}
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--%s=%s: %w", flagKubeconfig, kubeconfig, err)
	}
	return c, nil
}

// openStore opens the cluster store. It sends no request.
func openStore(o storeOptions, c clients, log *slog.Logger) (kvdb.Store, error) {
	if o.kind == storeKubernetes {
		return apistore.Open(apistore.Config{REST: c.config, UserAgent: c.config.UserAgent, Log: log})
	}
	cfg := etcd.Config{Endpoints: o.endpoints, Prefix: o.prefix, Username: o.username, Log: log}
	files := etcd.Files{CA: o.ca, Cert: o.cert, Key: o.key, Password: o.passwordFile}
	if err := files.Read(&cfg); err != nil {
		return nil, o.flagged(err)
	}
	return etcd.Open(cfg)
}

// flagged adds the flag to an error of a file for etcd.
func (o storeOptions) flagged(err error) error {
	bad := new(etcd.FileError)
	if !errors.As(err, &bad) {
		return err
	}
	switch bad.File {
	case etcd.FileCA:
		return fmt.Errorf("--%s: %w", flagCA, bad.Err)
	case etcd.FileCert:
		return fmt.Errorf("--%s=%s, --%s=%s: %w", flagCert, o.cert, flagKey, o.key, bad.Err)
	default:
		return fmt.Errorf("--%s: %w", flagPasswordFile, bad.Err)
	}
}
