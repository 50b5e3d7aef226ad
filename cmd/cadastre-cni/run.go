// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// defaultSocket is the default path of an agent's socket.
const defaultSocket = "/run/cadastre/agent.sock"

// maxInput is far above any network configuration.
const maxInput = 4 << 20

// timeouts bound a whole call to the agent.
func timeout(command string) time.Duration {
	if command == "STATUS" {
		return 5 * time.Second
	}
	return 60 * time.Second
}

// run is the whole program; it returns the exit code.
func run(getenv func(string) string, stdin io.Reader, stdout io.Writer) int {
	out, version, err := serve(getenv, stdin)
	if err != nil {
		err.CNIVersion = version
		out, _ = json.MarshalIndent(err, "", "    ")
	}
	if len(out) > 0 {
		if _, werr := stdout.Write(append(out, '\n')); werr != nil {
			return 1
		}
	}
	if err != nil {
		return 1
	}
	return 0
}

func serve(getenv func(string) string, stdin io.Reader) (out []byte, version string, cerr *cni.Error) {
	inv, cerr := cni.FromEnv(getenv)
	if cerr != nil {
		return nil, "", cerr
	}
	if inv.Command == "VERSION" {
		out, err := cni.PrintVersions()
		if err != nil {
			return nil, "", cni.Errorf(cni.CodeInternal, "print the versions: %v", err)
		}
		return out, "", nil
	}
	if f, ok := stdin.(*os.File); ok {
		_ = f.SetReadDeadline(time.Now().Add(10 * time.Second)) // a file has none, and needs none
	}
	data, err := io.ReadAll(io.LimitReader(stdin, maxInput))
	if err != nil {
		return nil, "", cni.Errorf(cni.CodeIO, "error reading from stdin: %v", err)
	}
	conf, cerr := cni.ParseConfig(data, inv.Command)
	if cerr != nil {
		if conf != nil {
			version = conf.CNIVersion
		}
		return nil, version, cerr
	}
	req, cerr := cni.NewRequest(inv, conf)
	if cerr != nil {
		return nil, conf.CNIVersion, cerr
	}
	socket := conf.Socket
	if socket == "" {
		socket = getenv("CADASTRE_SOCKET")
	}
	if socket == "" {
		socket = defaultSocket
	}
	out, cerr = exchange(socket, req, conf)
	return out, conf.CNIVersion, cerr
}

// exchange asks the agent, or does what is to be done while it is away.
func exchange(socket string, req cni.Request, conf *cni.Config) ([]byte, *cni.Error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, cni.Errorf(cni.CodeInternal, "%v", err)
	}
	answer, err := post(socket, cni.Path, body, timeout(req.Command))
	if err == nil {
		return read(req, answer, conf)
	}
	if req.Command == "DEL" {
		return nil, leave(socket, req, body, err)
	}
	code := uint(cni.CodeTryAgain)
	if req.Command == "STATUS" {
		code = cni.CodeNotAvailable
	}
	if why, ok := errors.AsType[notServing](err); ok {
		return nil, cni.Errorf(code, "%s: the Cadastre agent at %s does not serve yet: %s", req.Command, socket, why)
	}
	return nil, cni.Errorf(
		code,
		"%s: the Cadastre agent does not answer at %s (%v): start cadastre-agent, or name its socket in ipam.socket or CADASTRE_SOCKET",
		req.Command,
		socket,
		err,
	)
}

func read(req cni.Request, answer []byte, conf *cni.Config) ([]byte, *cni.Error) {
	var reply struct {
		cni.Reply
		Error *cni.Error `json:"error"`
	}
	if err := json.Unmarshal(answer, &reply); err != nil {
		return nil, cni.Errorf(cni.CodeDecode, "the agent's answer cannot be read: %v", err)
	}
	if reply.Error != nil {
		return nil, reply.Error
	}
	if req.Command != "ADD" {
		return nil, nil
	}
	dns := conf.DNS
	if !conf.Main { // the main plugin passes its own on
		dns = cni.DNS{}
	}
	out, err := reply.Print(conf.CNIVersion, dns)
	if err != nil {
		return nil, cni.Errorf(cni.CodeInternal, "%v", err)
	}
	return out, nil
}

// leave writes a DEL down for an agent that is away. If the agent came back
// while it was written it is asked once more, so that nothing waits for its
// next start.
func leave(socket string, req cni.Request, body []byte, why error) *cni.Error {
	in, dir := cni.Intent{Network: req.Network, ContainerID: req.ContainerID, IfName: req.IfName}, cni.IntentDir(socket)
	if err := in.Write(dir); err != nil {
		return cni.Errorf(
			cni.CodeTryAgain,
			"DEL: the Cadastre agent does not answer at %s (%v), and the DEL must be repeated: %v: start cadastre-agent, or correct ipam.socket or CADASTRE_SOCKET",
			socket,
			why,
			err,
		)
	}
	if answer, err := post(socket, cni.Path, body, time.Second); err == nil {
		if _, cerr := read(req, answer, nil); cerr == nil {
			_ = in.Remove(dir) // the agent removes it too; a repeated DEL frees nothing more
		}
	}
	return nil
}
