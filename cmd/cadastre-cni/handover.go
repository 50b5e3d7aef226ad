// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// handOver has the agent do the work of this program. A process that has decoded JSON
// before does it in a tenth of the time, because its memory is there already. The error is a
// *cni.Error if the agent is there and refuses. Every other error means that the agent is away.
func handOver(
	socket string,
	getenv func(string) string,
	stdin []byte,
	t *tracer,
	until time.Time,
) (result, error) {
	body := cni.AppendCall(make([]byte, 0, 512+len(stdin)), getenv, stdin)
	a, err := send(socket, body, t, until)
	if err != nil {
		return result{}, err
	}
	return a.result(getenv("CNI_COMMAND"))
}

// notServing explains why an agent that answers does not serve CNI requests now.
type notServing string

func (e notServing) Error() string { return string(e) }

// result returns what the agent has made of a call, with the error of handOver.
func (a answer) result(command string) (result, error) {
	text := bytes.TrimSpace(a.body)
	switch exit := a.header(cni.HeaderExit); {
	case a.status == "502" || a.status == "503" || a.status == "504":
		var said struct{ Error string }
		if a.status == "503" && json.Unmarshal(a.body, &said) == nil && said.Error != "" {
			return result{}, notServing(said.Error)
		}
		return result{}, fmt.Errorf("status %s: %s", a.status, text)
	case a.status != "200":
		return result{}, cni.Errorf(cni.CodeTryAgain, "the agent refuses: status %s: %s", a.status, text)
	case exit == "1":
		return result{a.body, 1}, nil
	case exit != "0":
		return result{}, fmt.Errorf("header %s of the answer is %q: want 0 or 1", cni.HeaderExit, exit)
	case command == "ADD" && !bytes.Contains(text, []byte(`"address"`)): // a runtime would start a pod without one
		return result{}, cni.Errorf(cni.CodeDecode, "ADD: the agent's answer has no address: want one at least")
	}
	return result{a.body, 0}, nil
}

// socketOf returns the path of the agent's socket: that of the configuration, else that of
// the environment. It ignores what else is wrong with the configuration.
func socketOf(stdin []byte, getenv func(string) string) string {
	var conf struct {
		IPAM struct {
			Socket string `json:"socket"`
		} `json:"ipam"`
	}
	_ = json.Unmarshal(stdin, &conf) // the agent says what is wrong
	return cmp.Or(conf.IPAM.Socket, getenv("CADASTRE_SOCKET"), defaultSocket)
}
