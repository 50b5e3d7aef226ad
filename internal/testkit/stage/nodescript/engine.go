// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodescript

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// callEngine implements the command engine.
func callEngine(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: engine METHOD JSON FIELD")
	}
	socket := machineOf(ts).path("docker.sock")
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	resp, err := client.Post("http://plugin.moby.localhost/IpamDriver."+args[0], "", strings.NewReader(args[1]))
	ts.Check(err)
	defer func() { _ = resp.Body.Close() }()
	var answer map[string]any
	ts.Check(json.NewDecoder(resp.Body).Decode(&answer))
	field := args[2]
	if resp.StatusCode != http.StatusOK {
		field = "Err"
	}
	fmt.Fprintln(ts.Stdout(), answer[field])
}
