// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/spf13/pflag"
)

type storeOptions struct {
	kind                   string
	endpoints              []string
	prefix, ca, cert, key  string
	username, passwordFile string
}

// register defines the flags of the cluster store.
func (s *storeOptions) register(fs *pflag.FlagSet) {
	fs.StringVar(&s.kind, flagStoreType, storeEtcd, "the kind of the agents' cluster store: etcd or kubernetes")
	fs.StringSliceVar(&s.endpoints, flagEndpoints, nil, "`endpoints` of etcd, such as https://10.0.0.1:2379")
	fs.StringVar(&s.prefix, flagPrefix, "/cadastre/", "prefix of all keys in etcd")
	fs.StringVar(&s.ca, flagCA, "", "the `file` with the authorities of etcd's certificate")
	fs.StringVar(&s.cert, flagCert, "", "the `file` with the client certificate for etcd")
	fs.StringVar(&s.key, flagKey, "", "the `file` with the private key of --kvdb-cert")
	fs.StringVar(&s.username, flagUsername, "", "user name for etcd")
	fs.StringVar(&s.passwordFile, flagPasswordFile, "", "the `file` with the password of --kvdb-username")
}

// configured reports whether the flags name a cluster store.
func (s storeOptions) configured() bool { return s.kind == storeKubernetes || len(s.endpoints) > 0 }

func (s storeOptions) validate(p *problems) {
	switch s.kind {
	case storeEtcd, storeKubernetes:
	default:
		p.add(flagStoreType, s.kind, "it must be %s or %s", storeEtcd, storeKubernetes)
		return
	}
	for _, f := range []struct{ flag, value string }{{flagCA, s.ca}, {flagCert, s.cert}, {flagKey, s.key}, {flagUsername, s.username}, {flagPasswordFile, s.passwordFile}} {
		if f.value != "" && (s.kind == storeKubernetes || len(s.endpoints) == 0) {
			p.add(f.flag, f.value, "it has no effect: give --%s, or remove it", flagEndpoints)
		}
	}
	if s.kind == storeKubernetes {
		if len(s.endpoints) > 0 {
			p.add(
				flagEndpoints,
				strings.Join(s.endpoints, ","),
				"it has no effect with --%s=%s: remove one of the two",
				flagStoreType,
				storeKubernetes,
			)
		}
		return
	}
	for _, e := range s.endpoints {
		if err := checkEndpoint(e); err != nil {
			p.add(flagEndpoints, e, "%w: write host:port, or a URL such as https://10.0.0.1:2379", err)
		}
	}
	if !strings.HasPrefix(s.prefix, "/") || !strings.HasSuffix(s.prefix, "/") {
		p.add(flagPrefix, s.prefix, "it must begin and end with a slash, such as /cadastre/")
	}
	both := func(one, value, other, otherValue string) {
		if value != "" && otherValue == "" {
			p.add(one, value, "it needs --%s as well", other)
		}
	}
	both(flagCert, s.cert, flagKey, s.key)
	both(flagKey, s.key, flagCert, s.cert)
	both(flagUsername, s.username, flagPasswordFile, s.passwordFile)
	both(flagPasswordFile, s.passwordFile, flagUsername, s.username)
}

// checkEndpoint checks an endpoint of etcd.
func checkEndpoint(text string) error {
	host := text
	if strings.Contains(text, "://") {
		u, err := url.Parse(text)
		switch {
		case err != nil:
			return errors.New("it is not a URL")
		case u.Scheme != "http" && u.Scheme != "https":
			return fmt.Errorf("scheme %q: want http or https", u.Scheme)
		case u.User != nil:
			return fmt.Errorf(
				"it has a user or a password: give those with --%s and --%s",
				flagUsername,
				flagPasswordFile,
			)
		case u.Path != "" || u.RawQuery != "":
			return errors.New("it has a path")
		}
		host = u.Host
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil || name == "" {
		return errors.New("it is not an endpoint")
	}
	return checkBind(host)
}
