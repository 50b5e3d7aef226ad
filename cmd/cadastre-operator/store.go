// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
)

// clients speak to the API server.
type clients struct {
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	leases  coordination.LeasesGetter // whose requests end before the lease does
	config  *rest.Config              // what the others are made of; nil in tests
}

// connect makes clients. It does not speak to the API server yet.
func connect(o options) (c clients, err error) {
	if c.config, err = restConfig(o.kubeconfig); err != nil {
		return c, err
	}
	c.config.UserAgent = "cadastre-operator/" + version
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
		return c, fmt.Errorf("make clients of the API server %s: %w", c.config.Host, err)
	}
	return c, nil
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		c, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("--%s=\"\": it is needed outside of a pod: %w", flagKubeconfig, err)
		}
		return c, nil
	}
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--%s=%s: %w", flagKubeconfig, kubeconfig, err)
	}
	return c, nil
}

// openStore opens the cluster store. It asks nobody anything yet.
func openStore(o storeOptions, c clients, log *slog.Logger) (kvdb.Store, error) {
	if o.kind == storeKubernetes {
		return apistore.Open(apistore.Config{REST: c.config, UserAgent: c.config.UserAgent, Log: log})
	}
	cfg := etcd.Config{Endpoints: o.endpoints, Prefix: o.prefix, Username: o.username, Log: log}
	var err error
	if cfg.TLS, err = clientTLS(o); err != nil {
		return nil, err
	}
	if o.passwordFile != "" {
		password, err := os.ReadFile(o.passwordFile)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flagPasswordFile, err)
		}
		cfg.Password = strings.TrimRight(string(password), "\r\n")
		if cfg.Password == "" {
			return nil, fmt.Errorf("--%s=%s: the file is empty", flagPasswordFile, o.passwordFile)
		}
	}
	return etcd.Open(cfg)
}

// clientTLS is how etcd is spoken to, nil where no flag has a file for it.
func clientTLS(o storeOptions) (*tls.Config, error) {
	if o.ca == "" && o.cert == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.ca != "" {
		pem, err := os.ReadFile(o.ca)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flagCA, err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--%s=%s: the file has no certificate", flagCA, o.ca)
		}
	}
	if o.cert != "" {
		cert, err := tls.LoadX509KeyPair(o.cert, o.key)
		if err != nil {
			return nil, fmt.Errorf("--%s=%s, --%s=%s: %w", flagCert, o.cert, flagKey, o.key, err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}
