// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"

	"google.golang.org/protobuf/proto"
)

// admit reads once what the loop needs of an event: its name, its method and whether
// it blocks. It fails for an event that has no methods to call. A method that panics
// is the fault of an event that is queued all the same, so that Done gets the error.
func admit(event Event) (ev queued, blocking bool, err error) {
	if event == nil || isNil(event) {
		return ev, false, fmt.Errorf("%w: it is a nil %T: want a pointer to an event", ErrMalformedEvent, event)
	}
	ev.Event = event
	ev.class, ev.fault = classOf(event)
	if ev.fault == nil {
		ev.name, ev.method, blocking, ev.fault = ask(event)
	} else {
		ev.name = fmt.Sprintf("%T", event)
	}
	return ev, blocking, nil
}

// classOf returns the class of an event.
func classOf(event Event) (class EventClass, err error) {
	x, ok := event.(ClassifiedEvent)
	if !ok {
		return Ordered, nil
	}
	defer caught(&err)
	return x.Class(), nil
}

// ask calls the methods of an event that the loop needs before it processes the event.
func ask(event Event) (name string, method EventMethodType, blocking bool, err error) {
	defer func() {
		if err != nil && name == "" {
			name = fmt.Sprintf("%T", event)
		}
	}()
	defer caught(&err)
	name = event.GetName()
	return name, event.Method(), event.IsBlocking(), nil
}

// isNil reports whether v is a nil pointer of a type, which is not == nil.
func isNil(v any) bool {
	x := reflect.ValueOf(v)
	return x.Kind() == reflect.Pointer && x.IsNil()
}

// admit prepares an event of a producer for the queue. It refuses one that the
// producer would wait for while the loop waits for the producer.
func (c *Controller) admit(event Event, waits bool) (queued, error) {
	ev, blocking, err := admit(event)
	switch {
	case err != nil:
		return ev, fmt.Errorf("push event: %w", err)
	case (waits || blocking) && OnLoop():
		return ev, fmt.Errorf("push event %s: %w", ev.name, ErrWaitInLoop)
	}
	ev.pushed = c.deps.Now()
	return ev, nil
}

// own prepares an event that the loop makes.
func (c *Controller) own(event Event) queued {
	ev, _, _ := admit(event)
	ev.pushed = c.deps.Now()
	return ev
}

// loopName holds the runtime's name of the function that makes the loop's calls.
const loopName = "github.com/cadastre/cadastre/controller.(*caller).serve"

// OnLoop reports whether its caller was called by an event loop: by a handler, a
// committer, a sink or Done. The methods of EventLoop, and those that one plugin
// publishes for others, have no parameter that could say so.
func OnLoop() bool {
	var pcs [64]uintptr
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		if n == 0 {
			return false
		}
		for _, pc := range pcs[:n] { // serve is the first function of its goroutine: it has a frame of its own
			if runtime.FuncForPC(pc-1).Name() == loopName {
				return true
			}
		}
	}
}

// inspect checks an event before its handlers are called, and reads how an update
// is processed.
func (r *run) inspect() error {
	if r.ev.fault != nil {
		return malformed(r.ev.name, r.ev.fault)
	}
	switch r.ev.method {
	case FullResync, UpstreamResync, DownstreamResync:
	case Update:
		u, ok := r.ev.Event.(UpdateEvent)
		if !ok {
			return fmt.Errorf("%s: %w", r.ev.name, errNotUpdateEvent)
		}
		r.update = u
		if err := r.c.guard(func() error {
			r.reverts, r.reverse = u.TransactionType() == RevertOnFailure, u.Direction() == Reverse
			return nil
		}); err != nil {
			return malformed(r.ev.name, err)
		}
	default:
		return malformed(
			r.ev.name,
			fmt.Errorf(
				"method %d is unknown: want FullResync, UpstreamResync, DownstreamResync or Update",
				r.ev.method,
			),
		)
	}
	if err := checkKeys(r.ev.Event); err != nil {
		return malformed(r.ev.name, err)
	}
	return nil
}

func malformed(name string, err error) error {
	return fmt.Errorf("%w: %s: %w", ErrMalformedEvent, name, err)
}

// checkKeys finds what the loop could not store. A DBResync is not among the events
// that fail: the rest of its snapshot is what every other event waits for.
func checkKeys(ev Event) error {
	switch ev := ev.(type) {
	case *KubeStateChange:
		switch {
		case ev.Resource == "" || ev.Key == "":
			return fmt.Errorf("resource %q, key %q: want both", ev.Resource, ev.Key)
		case isNil(ev.New):
			return fmt.Errorf(
				"resource %q, key %q: New is a nil %T: want a message, or nil without a type for a removal",
				ev.Resource,
				ev.Key,
				ev.New,
			)
		case isNil(ev.Prev):
			return fmt.Errorf(
				"resource %q, key %q: Prev is a nil %T: want a message, or nil without a type for an addition",
				ev.Resource,
				ev.Key,
				ev.Prev,
			)
		}
	case *ExternalConfigChange:
		return checkExternal(ev.Source, ev.Values)
	case *ExternalConfigResync:
		return checkExternal(ev.Source, ev.ExternalConfig)
	}
	return nil
}

func checkExternal(source string, values map[string]proto.Message) error {
	if _, ok := values[""]; ok {
		return fmt.Errorf("source %q has a value under an empty key: want a southbound key", source)
	}
	if source == "" {
		return errors.New("the source is empty: want its name")
	}
	return nil
}

// takeKubeState copies the maps of a DBResync, which the loop changes later and the
// producer may go on using. It leaves out, and reports, what has no key or no message.
func (r *run) takeKubeState(data KubeStateData) {
	r.c.kubeState = make(KubeStateData, len(data))
	for resource, values := range data {
		own := make(map[string]proto.Message, len(values))
		for key, m := range values {
			if resource == "" || key == "" || m == nil || isNil(m) {
				r.outside = append(
					r.outside,
					malformed(
						r.ev.name,
						fmt.Errorf("resource %q, key %q: want both, and a message: left out", resource, key),
					),
				)
				continue
			}
			own[key] = m
		}
		r.c.kubeState[resource] = own
	}
}
