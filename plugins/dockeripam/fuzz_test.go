// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package dockeripam_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/dockeripam"
)

// methods are all of the protocol.
func methods() []string {
	return append(withArguments(), "IpamDriver.GetDefaultAddressSpaces", "IpamDriver.GetCapabilities", "Plugin.Activate", "IpamDriver.Nothing")
}

// FuzzHandler sends one request for each line; its first byte selects the method. Each
// request gets an answer that the engine can read, with the status of its class, and
// the ledger stays consistent and restorable.
func FuzzHandler(f *testing.F) {
	for _, seed := range []string{
		"0{\"AddressSpace\":\"LocalDefault\",\"Pool\":\"10.1.0.0/16\",\"SubPool\":\"10.1.2.0/24\",\"Options\":{\"cadastre.group\":\"g\"}}\n" +
			"2{\"PoolID\":\"LocalDefault/10.1.0.0/16/10.1.2.0/24?group=g\",\"Address\":\"\",\"Options\":{\"com.docker.network.endpoint.macaddress\":\"02:42:00:00:00:01\"}}\n" +
			"3{\"PoolID\":\"LocalDefault/10.1.0.0/16/10.1.2.0/24?group=g\",\"Address\":\"10.1.2.0\"}\n1{\"PoolID\":\"LocalDefault/10.1.0.0/16/10.1.2.0/24?group=g\"}",
		"0{\"AddressSpace\":\"GlobalDefault\",\"V6\":true}\n0{\"AddressSpace\":\"LocalDefault\",\"V6\":true}\n0{\"AddressSpace\":\"LocalDefault\",\"Pool\":\"0.0.0.0/24\"}",
		"2{\"PoolID\":\"LocalDefault/10.9.0.0/31\",\"Address\":\"10.9.0.1\",\"Options\":{\"RequestAddressType\":\"com.docker.network.gateway\"}}\n4\n5\n6\n7",
		"2{\"PoolID\":\"LocalDefault/fd00::/64\",\"Address\":\"fd00::1%eth0\"}\n2{\"PoolID\":\"LocalDefault/10.9.0.0/24\",\"Address\":\"::ffff:10.9.0.7\"}",
		"0\n1null\n2[]\n3\x00", "0{\"AddressSpace\":\"LocalDefault\",\"Pool\":\"::/0\",\"Options\":{\"cadastre.allow-overlap\":\"true\"}}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		l, err := ledger.Open(t.Context(), ledger.NullJournal{}, ledger.Options{})
		if err != nil {
			t.Fatal(err)
		}
		records := ipamapi.NewMemoryRecords()
		made := make(chan struct{})
		p := dockeripam.NewPlugin(dockeripam.Deps{EventLoop: &deaf{}, NewDriver: func(ctx context.Context, _ ipamapi.PoolOpener) (dockeripam.Driver, error) {
			defer close(made)
			return ipamapi.New(ctx, ipamapi.Deps{Ledger: l, Records: records})
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		<-made
		handler := p.Handler()
		lines := bytes.Split(script, []byte("\n"))
		for _, line := range lines[:min(len(lines), 32)] {
			if len(line) > 0 {
				fuzzOne(t, handler, methods()[int(line[0])%len(methods())], line[1:])
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		findings, err := l.Check(t.Context())
		if err != nil || len(findings) > 0 {
			t.Fatal(err, findings)
		}
		if _, err := ipamapi.New(t.Context(), ipamapi.Deps{Ledger: l, Records: records}); err != nil {
			t.Fatalf("the next start: %v", err)
		}
	})
}

func fuzzOne(t *testing.T, handler http.Handler, method string, body []byte) {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/"+method, bytes.NewReader(body)))
	if !slices.Contains([]int{200, 400, 403, 404, 503}, w.Code) {
		t.Fatalf("%s %q: status %d: %s", method, body, w.Code, w.Body)
	}
	var answer map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatalf("%s %q: %q is not an object: %v", method, body, w.Body, err)
	}
	failed, _ := answer["Err"].(string)
	if (failed == "") != (w.Code == http.StatusOK) || answer["Err"] != answer["Error"] {
		t.Fatalf("%s %q: status %d: %s", method, body, w.Code, w.Body)
	}
	if len(body) == 0 && slices.Contains(withArguments(), method) && w.Code != http.StatusBadRequest {
		t.Fatalf("%s without a body: %s", method, w.Body)
	}
	for _, field := range map[string][]string{"IpamDriver.RequestPool": {"PoolID", "Pool"}, "IpamDriver.RequestAddress": {"Address"}}[method] {
		if text, _ := answer[field].(string); w.Code == http.StatusOK && text == "" {
			t.Fatalf("%s %q: no %s in %s", method, body, field, w.Body)
		}
	}
}
