// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"strings"
	"testing/synctest"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

func request(command string, k ledger.Key) cni.Request {
	return cni.Request{
		Command:     command,
		Network:     k.Network,
		ContainerID: k.ContainerID,
		IfName:      k.IfName,
		Netns:       "/run/netns/" + k.ContainerID,
		Pod:         cni.Pod{Namespace: "ns-" + k.ContainerID, Name: "web-0"},
	}
}

// ask sends a request through the API; code 0 is success.
func (w *world) ask(ctx context.Context, req cni.Request) (address string, code uint) {
	reply, err := cniclient.Ask(ctx, cniclient.Through(w.api), req)
	if refusal, ok := errors.AsType[*cni.Error](err); ok {
		return "", refusal.Code
	}
	if err != nil {
		return "", 999
	}
	return cniclient.Address(reply), 0
}

func (w *world) add(k ledger.Key) {
	a, code := w.ask(context.Background(), request("ADD", k))
	w.say("ADD %s -> %s code %d", k, a, code)
	w.added(k, a, code)
}

func (w *world) added(k ledger.Key, a string, code uint) {
	if code != 0 {
		if w.told[k] == "" {
			w.unsure[k] = true
		}
		return
	}
	if had := w.told[k]; had != "" && had != a {
		w.t.Errorf("%s was told %s and then %s\n%s", k, had, a, strings.Join(w.log, "\n"))
	}
	w.told[k] = a
	delete(w.unsure, k)
}

func (w *world) del(k ledger.Key) {
	_, code := w.ask(context.Background(), request("DEL", k))
	w.say("DEL %s -> code %d", k, code)
	w.deleted(k, code)
}

func (w *world) deleted(k ledger.Key, code uint) {
	delete(w.told, k)
	if code == 0 {
		delete(w.unsure, k)
	} else {
		w.unsure[k] = true
	}
}

// gc lists some attachments. It frees nothing: this agent has no kernel witness.
func (w *world) gc() {
	req := cni.Request{Command: "GC", Network: "pods", Attachments: []cni.Attachment{}}
	for k := range w.told {
		if k.Network == "pods" && w.rnd.IntN(2) == 0 {
			req.Attachments = append(req.Attachments, cni.Attachment{ContainerID: k.ContainerID, IfName: k.IfName})
		}
	}
	_, code := w.ask(context.Background(), req)
	w.say("GC of pods but for %v -> code %d", req.Attachments, code)
}

// leave is an ADD whose caller is gone before the answer.
func (w *world) leave(k ledger.Key) {
	ctx, cancel := context.WithCancel(context.Background())
	w.fault.CompareAndSwap(0, int32(journal.Delay))
	done := make(chan struct{})
	go func() {
		defer close(done)
		time.Sleep(time.Second)
		cancel()
	}()
	a, code := w.ask(ctx, request("ADD", k))
	<-done
	w.say("ADD %s, caller gone -> %s code %d", k, a, code)
	w.added(k, a, code)
	time.Sleep(10 * time.Second)
	synctest.Wait()
	if code != 0 && w.told[k] == "" && w.bad.mood.Load() == 0 {
		w.unsure[k] = true
	}
}

// burst is several requests for one key, and others, at once.
func (w *world) burst(k ledger.Key) {
	type outcome struct {
		command, address string
		code             uint
	}
	results := make(chan outcome, 6)
	n := 2 + w.rnd.IntN(4)
	for range n {
		command := []string{"ADD", "ADD", "DEL"}[w.rnd.IntN(3)]
		go func() {
			a, code := w.ask(context.Background(), request(command, k))
			results <- outcome{command, a, code}
		}()
	}
	had := w.told[k]
	delete(w.told, k)
	w.unsure[k] = true // unless all agree, any order may have been the real one
	adds, dels, failed := map[string]bool{}, 0, 0
	for range n {
		r := <-results
		w.say("at once: %s %s -> %s code %d", r.command, k, r.address, r.code)
		switch {
		case r.command == "DEL": // one that failed may have been done all the same
			dels++
			if r.code != 0 {
				failed++
			}
		case r.code != 0:
			failed++
		default:
			adds[r.address] = true
		}
	}
	switch {
	case dels == 0 && failed == 0 || dels == 0 && had != "":
		if had != "" {
			adds[had] = true
		}
		if len(adds) > 1 {
			w.t.Errorf("%s was told %v at once\n%s", k, adds, strings.Join(w.log, "\n"))
		}
		for a := range adds {
			w.added(k, a, 0)
		}
	case len(adds) == 0 && failed == 0:
		w.deleted(k, 0)
	}
}
