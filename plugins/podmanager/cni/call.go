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

// PathCall is the path of the agent's socket that takes a Call. The answer's body is the
// output of the plugin, and its header HeaderExit the exit code. Every other status than
// 200 says nothing about the call: the plugin then does the work itself, by Path.
const PathCall = "/v1/cni/call"

// HeaderExit names the header of the exit code, "0" or "1".
const HeaderExit = "Cni-Exit"

// Call holds what a runtime gives to the plugin. The agent does most of the plugin's work,
// because a process that has done it before needs a tenth of the time.
type Call struct {
	Socket string // ipam.socket as the plugin has found it in Stdin, "" if it is not there
	Stdin  []byte
	env    map[string]string
}

// variables returns the names of the environment variables in a Call.
func variables() []string {
	return []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"}
}

// socketVariable stands for Call.Socket among the variables.
const socketVariable = "socket"

// AppendCall appends the body of a request with a Call: "NAME=VALUE" of each variable with
// a final zero, another zero, and stdin.
func AppendCall(b []byte, getenv func(string) string, socket string, stdin []byte) []byte {
	for _, name := range variables() {
		b = append(append(append(append(b, name...), '='), getenv(name)...), 0)
	}
	b = append(append(append(b, socketVariable+"="...), socket...), 0)
	return append(append(b, 0), stdin...)
}

// ParseCall reads what AppendCall has written. The variables of a newer plugin that are
// not known here are an error.
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
	c.Socket = c.env[socketVariable]
	delete(c.env, socketVariable)
	for _, name := range variables() {
		if _, ok := c.env[name]; !ok {
			return Call{}, fmt.Errorf("variable %s is missing", name)
		}
	}
	if len(c.env) > len(variables()) {
		return Call{}, fmt.Errorf("it has %d variables, of which %d are known", len(c.env), len(variables()))
	}
	return c, nil
}

// ErrNotForTheAgent is returned for a Call that the plugin has to do itself.
var ErrNotForTheAgent = errors.New("the plugin has to do this itself")

// Request returns the request of a Call, and its configuration, nil if that cannot be
// read. It is the one that the plugin would send to Path.
func (c Call) Request() (req Request, conf *Config, cerr *Error, err error) {
	inv, cerr := FromEnv(func(name string) string { return c.env[name] })
	if cerr != nil || inv.Command == "VERSION" {
		return Request{}, nil, cerr, ErrNotForTheAgent
	}
	req, conf, cerr = Prepare(inv, c.Stdin)
	if conf != nil && conf.Socket != c.Socket {
		return Request{}, nil, nil, fmt.Errorf(
			"%w: ipam.socket is %q, not %q",
			ErrNotForTheAgent,
			conf.Socket,
			c.Socket,
		)
	}
	if cerr != nil {
		return Request{}, conf, cerr, nil
	}
	text, err := json.Marshal(req) // what JSON changes, such as bytes that are not UTF-8, is changed here, too
	if err == nil {
		req = Request{}
		err = json.Unmarshal(text, &req)
	}
	return req, conf, nil, err
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
