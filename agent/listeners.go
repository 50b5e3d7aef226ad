// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net"

	"github.com/cadastre/cadastre/httpserver"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/restapi"
)

// Listeners holds sockets that the caller has opened. The agent closes them.
type Listeners struct {
	Docker  net.Listener // of Docker's driver; nil: the socket that cadastre.docker names
	REST    net.Listener // of the read-only API, as it is; nil: as cadastre.rest says
	Metrics net.Listener // of metrics and probes, as it is; nil: as cadastre.metrics says
}

// close closes all listeners. The servers have closed those that were served.
func (l Listeners) close() (err error) {
	for _, opened := range []net.Listener{l.Docker, l.REST, l.Metrics} {
		if opened == nil {
			continue
		}
		if e := opened.Close(); e != nil && !errors.Is(e, net.ErrClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// tcpListeners returns the listeners of the read-only API and of the metrics that the
// caller has opened or the configuration names; nil for one that is not served.
func tcpListeners(
	conf contivconf.Cadastre,
	opened Listeners,
	limits httpserver.Limits,
) (rest, metrics *restapi.TCP, err error) {
	if r := conf.REST; r.Listen != "" {
		if rest, err = tcpListener(
			r.Listen,
			httpserver.Files{Cert: r.Cert, Key: r.Key, ClientCA: r.ClientCA},
			limits,
		); err != nil {
			return nil, nil, fmt.Errorf("cadastre.rest: %w", err)
		}
	}
	if m := conf.Metrics; m.Enabled {
		if metrics, err = tcpListener(
			m.Listen,
			httpserver.Files{Cert: m.Cert, Key: m.Key, ClientCA: m.ClientCA},
			limits,
		); err != nil {
			return nil, nil, fmt.Errorf("cadastre.metrics: %w", err)
		}
	}
	if opened.REST != nil {
		rest = &restapi.TCP{Listener: opened.REST, Limits: limits}
	}
	if opened.Metrics != nil {
		metrics = &restapi.TCP{Listener: opened.Metrics, Limits: limits}
	}
	return rest, metrics, nil
}

// tcpListener returns a listener with TLS, or without it if no certificate is named.
func tcpListener(address string, files httpserver.Files, limits httpserver.Limits) (*restapi.TCP, error) {
	tcp := &restapi.TCP{Address: address, Limits: limits}
	if files.Cert == "" {
		return tcp, nil
	}
	var err error
	tcp.TLS, err = files.Config()
	return tcp, err
}
