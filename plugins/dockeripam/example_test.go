// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package dockeripam_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/dockeripam"
)

// The engine's requests for "docker network create --ipam-driver cadastre blue",
// without an event loop.
func Example() {
	l, err := ledger.Open(context.Background(), ledger.NullJournal{}, ledger.Options{})
	if err != nil {
		log.Fatal(err)
	}
	p := dockeripam.NewPlugin(dockeripam.Deps{
		NewDriver: func(ctx context.Context, _ ipamapi.PoolOpener) (dockeripam.Driver, error) {
			return ipamapi.New(ctx, ipamapi.Deps{Ledger: l})
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }() // Serve would listen on Deps.Socket

	for _, call := range []struct{ method, body string }{
		{"RequestPool", `{"AddressSpace":"LocalDefault","Pool":"","V6":false}`},
		{"RequestAddress", `{"PoolID":"LocalDefault/172.17.0.0/16","Options":{"RequestAddressType":"com.docker.network.gateway"}}`},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/IpamDriver."+call.method, strings.NewReader(call.body))
		p.Handler().ServeHTTP(w, r)
		fmt.Println(w.Body)
	}
	cancel()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	// Output:
	// {"PoolID":"LocalDefault/172.17.0.0/16","Pool":"172.17.0.0/16","Data":{}}
	// {"Address":"172.17.0.1/16","Data":{}}
}
