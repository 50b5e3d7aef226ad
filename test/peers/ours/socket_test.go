// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ours

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/dockeripam"
	"github.com/cadastre/cadastre/test/peers/workload"
)

// socketClients is how many ask Docker's driver at the same time.
const socketClients = 64

// serveDocker runs Docker's driver on a socket and on the disk, as the agent
// does, and gives the socket's path.
func serveDocker(b *testing.B) (socket string) {
	b.Helper()
	f := openFile(b, tempDir(b), runDir(b))
	l, err := ledger.Open(context.Background(), f.Journal(), ledger.Options{BootID: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	socket = filepath.Join(runDir(b), "docker.sock")
	p := dockeripam.NewPlugin(dockeripam.Deps{
		PluginDeps: controller.PluginDeps{Log: quiet}, Socket: socket,
		NewDriver: func(ctx context.Context, _ ipamapi.PoolOpener) (dockeripam.Driver, error) {
			return ipamapi.New(ctx, ipamapi.Deps{Ledger: l, Records: f.Records("docker"), Log: quiet})
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- p.Run(ctx) }()
	go func() { ended <- p.Serve(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, <-ended, f.Close()); err != nil {
			b.Error(err)
		}
	})
	for began := time.Now(); ; {
		c, err := net.Dial("unix", socket)
		if err == nil {
			_ = c.Close()
			return socket
		}
		if time.Since(began) > 10*time.Second {
			b.Fatal(err)
		}
	}
}

// dockerEngine asks as the engine does, over a connection that stays.
type dockerEngine struct{ http http.Client }

func newDockerEngine(socket string) *dockerEngine {
	return &dockerEngine{http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}}
}

func (e *dockerEngine) call(method string, args, answer any) error {
	body, err := json.Marshal(args)
	if err != nil {
		return err
	}
	resp, err := e.http.Post("http://plugin.moby.localhost/IpamDriver."+method, "", bytes.NewReader(body))
	if err != nil {
		return err
	}
	text, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", method, resp.Status, text)
	}
	return json.Unmarshal(text, answer)
}

// BenchmarkDockerSocket is a request of the engine, half of them for an address,
// half to release one; each is durable when it is answered. Clients, server and
// disk are one machine's.
func BenchmarkDockerSocket(b *testing.B) {
	for _, n := range []int{1, socketClients} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			socket := serveDocker(b)
			type pool struct{ PoolID string }
			type address struct{ PoolID, Address string }
			var p pool
			if err := newDockerEngine(socket).call("RequestPool", map[string]string{"AddressSpace": "LocalDefault", "Pool": "10.1.0.0/16"}, &p); err != nil {
				b.Fatal(err)
			}
			clients, held := make([]*dockerEngine, n), make([]string, n)
			for i := range clients {
				clients[i] = newDockerEngine(socket)
				b.Cleanup(clients[i].http.CloseIdleConnections)
			}
			workload.Callers(b, n, func(g int) error {
				if held[g] != "" {
					a, _, _ := strings.Cut(held[g], "/")
					held[g] = ""
					return clients[g].call("ReleaseAddress", address{p.PoolID, a}, &struct{}{})
				}
				var got address
				err := clients[g].call("RequestAddress", map[string]any{"PoolID": p.PoolID, "Options": map[string]string{
					ipamapi.EndpointMAC: fmt.Sprintf("02:42:00:00:00:%02x", g)}}, &got)
				if err != nil {
					return err
				}
				held[g] = got.Address
				_, err = netip.ParsePrefix(got.Address)
				return err
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
