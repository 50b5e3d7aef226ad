// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
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
	socket := socketOf(data, getenv)
	r, err := handOver(socket, getenv, data, t, until)
	if err == nil {
		return r
	}
	req, conf, cerr := cni.Prepare(inv, data)
	refusal, refused := errors.AsType[*cni.Error](err)
	switch {
	case cerr != nil: // found without the agent
	case refused:
		cerr = refusal
	case inv.Command == "DEL":
		cerr = leave(socket, req, began, err)
	default:
		cerr = away(socket, inv.Command, err)
	}
	if cerr != nil {
		return failed(cerr, conf)
	}
	return result{}
}

// away returns the error of a command for an agent that is away.
func away(socket, command string, why error) *cni.Error {
	code := uint(cni.CodeTryAgain)
	if command == "STATUS" {
		code = cni.CodeNotAvailable
	}
	if _, ok := errors.AsType[notServing](why); ok {
		return cni.Errorf(code, "%s: the Cadastre agent at %s does not serve yet: %v", command, socket, why)
	}
	return cni.Errorf(
		code,
		"%s: the Cadastre agent does not answer at %s (%v): start cadastre-agent, or name its socket in ipam.socket or CADASTRE_SOCKET",
		command,
		socket,
		why,
	)
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
