// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Path is the path of the agent's socket that takes a Call. With status 200 the answer's body
// is the output of the plugin, and its header HeaderExit the exit code. Status 503 says that
// the agent starts or stops: the plugin does as without an agent.
const Path = "/v1/cni"

// HeaderExit names the header of the exit code, "0" or "1".
const HeaderExit = "Cni-Exit"

// Call holds what a runtime gives to the plugin. The agent does the plugin's work, because
// a process that has done it before needs a tenth of the time.
type Call struct {
	Stdin []byte
	env   map[string]string
}

// variables returns the names of the environment variables in a Call.
func variables() []string {
	return []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"}
}

// AppendCall appends the body of a request with a Call: "NAME=VALUE" of each variable with
// a final zero, another zero, and stdin.
func AppendCall(b []byte, getenv func(string) string, stdin []byte) []byte {
	for _, name := range variables() {
		b = append(append(append(append(b, name...), '='), getenv(name)...), 0)
	}
	return append(append(b, 0), stdin...)
}

// ParseCall reads what AppendCall has written. The plugin may be of another version: a
// variable that is not known here is ignored, and a missing one is empty.
func ParseCall(body []byte) (Call, error) {
	head, stdin, ok := bytes.Cut(body, []byte{0, 0})
	if !ok {
		return Call{}, errors.New("the variables have no end: want NAME=VALUE and a zero for each, and another zero")
	}
	c := Call{Stdin: stdin, env: map[string]string{}}
	for text := range strings.SplitSeq(string(head), "\x00") {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return Call{}, fmt.Errorf("%q is not NAME=VALUE", text)
		}
		c.env[name] = value
	}
	return c, nil
}

// Request returns the request of a Call. With an error the configuration is nil if it cannot
// be read.
func (c Call) Request() (Request, *Config, *Error) {
	inv, err := FromEnv(func(name string) string { return c.env[name] })
	if err != nil {
		return Request{}, nil, err
	}
	return Prepare(inv, c.Stdin)
}

// Prepare returns the request of an invocation with the configuration in stdin. With an
// error the configuration is nil if it cannot be read.
func Prepare(inv Invocation, stdin []byte) (Request, *Config, *Error) {
	conf, err := ParseConfig(stdin, inv.Command)
	if err != nil {
		return Request{}, conf, err
	}
	req, err := NewRequest(inv, conf)
	return req, conf, err
}

// Output returns what the plugin prints for a reply; nil if it prints nothing. An ADD
// without an address has failed.
func Output(req Request, reply Reply, conf *Config) ([]byte, *Error) {
	if req.Command != "ADD" {
		return nil, nil
	}
	if len(reply.IPs) == 0 {
		return nil, Errorf(CodeDecode, "ADD: the agent's answer has no address: want one at least")
	}
	for _, ip := range reply.IPs {
		if _, err := netip.ParsePrefix(ip.Address); err != nil {
			return nil, Errorf(CodeDecode, "ADD: the agent's answer has the address %q: "+
				"want one with its prefix length, such as 10.1.5.2/24", ip.Address)
		}
	}
	dns := conf.DNS
	if !conf.Main { // the main plugin passes its own on
		dns = DNS{}
	}
	out, err := reply.Print(conf.CNIVersion, dns)
	if err != nil {
		return nil, Errorf(CodeInternal, "%v", err)
	}
	return append(out, '\n'), nil
}

// Print returns what the plugin prints for an error; conf may be nil.
func (e *Error) Print(conf *Config) []byte {
	printed := *e
	if printed.CNIVersion = ""; conf != nil {
		printed.CNIVersion = conf.CNIVersion
	}
	out, _ := json.MarshalIndent(printed, "", "    ") // it has strings and numbers only
	return append(out, '\n')
}
