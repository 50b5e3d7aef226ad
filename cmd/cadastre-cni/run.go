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

// timeout returns the limit of a whole call to the agent.
func timeout(command string) time.Duration {
	if command == "STATUS" {
		return 5 * time.Second
	}
	return 60 * time.Second
}

// result holds what the program prints, and its exit code.
type result struct {
	out  []byte
	exit int
}

// failed returns the result of an error; conf may be nil.
func failed(err *cni.Error, conf *cni.Config) result { return result{err.Print(conf), 1} }

// run is the whole program; it returns the exit code.
func run(getenv func(string) string, stdin io.Reader, stdout io.Writer) int {
	t := &tracer{began: time.Now()}
	r := serve(getenv, stdin, t)
	if len(r.out) > 0 {
		if _, err := stdout.Write(r.out); err != nil {
			return 1
		}
	}
	t.report(r)
	return r.exit
}

func serve(getenv func(string) string, stdin io.Reader, t *tracer) result {
	inv, cerr := cni.FromEnv(getenv)
	if cerr != nil {
		return failed(cerr, nil)
	}
	if inv.Command == "VERSION" {
		out, err := cni.PrintVersions()
		if err != nil {
			return failed(cni.Errorf(cni.CodeInternal, "print the versions: %v", err), nil)
		}
		return result{append(out, '\n'), 0}
	}
	if f, ok := stdin.(*os.File); ok {
		stdin = timed{f, time.Now().Add(stdinTimeout)}
	}
	data, err := io.ReadAll(io.LimitReader(stdin, maxInput))
	if err != nil {
		return failed(cni.Errorf(cni.CodeIO, "error reading from stdin: %v", err), nil)
	}
	until, began := time.Now().Add(timeout(inv.Command)), uptime()
	t.begin(inv.Command)
	if r, ok := handOver(getenv, data, t, until); ok {
		return r
	}
	req, conf, cerr := cni.Prepare(inv, data)
	if cerr != nil {
		return failed(cerr, conf)
	}
	out, cerr := exchange(socketOf(conf.Socket, getenv), req, conf, t, until, began)
	if cerr != nil {
		return failed(cerr, conf)
	}
	return result{out, 0}
}

// socketOf returns the path of the agent's socket; named is that of the configuration.
func socketOf(named string, getenv func(string) string) string {
	if named == "" {
		named = getenv("CADASTRE_SOCKET")
	}
	if named == "" {
		return defaultSocket
	}
	return named
}

// exchange asks the agent, or does what is to be done while it is away.
func exchange(
	socket string,
	req cni.Request,
	conf *cni.Config,
	t *tracer,
	until time.Time,
	began time.Duration,
) ([]byte, *cni.Error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, cni.Errorf(cni.CodeInternal, "%v", err)
	}
	answer, err := post(socket, cni.Path, body, t, until)
	if err == nil {
		return read(req, answer, conf)
	}
	if req.Command == "DEL" {
		return nil, leave(socket, req, began, err)
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
	return cni.Output(req, reply.Reply, conf)
}

// leave writes a DEL down for an agent that is away. An agent that has come back meanwhile
// applies it soon. The DEL began at an uptime, so that it frees no lease of a later ADD.
func leave(socket string, req cni.Request, began time.Duration, why error) *cni.Error {
	in := cni.Intent{Network: req.Network, ContainerID: req.ContainerID, IfName: req.IfName, Began: beganAt(began)}
	if err := in.Write(cni.IntentDir(socket)); err != nil {
		return cni.Errorf(
			cni.CodeTryAgain,
			"DEL: the Cadastre agent does not answer at %s (%v), and the DEL must be repeated: %v: start cadastre-agent, or correct ipam.socket or CADASTRE_SOCKET",
			socket,
			why,
			err,
		)
	}
	return nil
}
