// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// A handler runs in the loop. If it pushed an event there and waited for room or for
// the outcome, it would wait for itself; follow-ups go through the transaction
// instead. So nothing that a handler's methods lead to may push. The methods lead to
// the functions that they mention, whether they call them or hand them on. For
// methods of interfaces, they lead to those of every plugin type that fits. What is
// stored in a field as a function is followed from where it is stored.

// pushes are the methods that push.
func pushes() []string { return []string{"PushEvent", "PushEventWait"} }

// contract are the methods that make a type a handler.
func contract() []string { return []string{"HandlesEvent", "Resync", "Update", "Revert"} }

// inLoop are all methods of handlers that the loop calls.
func inLoop() []string { return append(contract(), "String", "Commit", "Undo") }

// calls maps a function to the functions that it mentions.
type calls map[*types.Func][]*types.Func

func (u *universe) calls() calls {
	all, fits := calls{}, u.named()
	for _, c := range u.checked {
		for _, file := range c.files {
			for _, d := range file.Decls {
				decl, ok := d.(*ast.FuncDecl)
				if !ok || decl.Body == nil {
					continue
				}
				from, ok := c.info.Defs[decl.Name].(*types.Func)
				if !ok {
					continue
				}
				ast.Inspect(decl.Body, func(n ast.Node) bool {
					if id, ok := n.(*ast.Ident); ok {
						if f, ok := c.info.Uses[id].(*types.Func); ok {
							all[from] = append(append(all[from], f.Origin()), implementations(f, fits)...)
						}
					}
					return true
				})
			}
		}
	}
	return all
}

// implementations are the methods that a call of an interface's method may end in.
func implementations(f *types.Func, all []types.Type) []*types.Func {
	sig, ok := f.Type().(*types.Signature)
	if !ok || sig.Recv() == nil {
		return nil
	}
	face, ok := sig.Recv().Type().Underlying().(*types.Interface)
	if !ok {
		return nil
	}
	var found []*types.Func
	for _, t := range all {
		if types.Implements(t, face) {
			found = append(found, method(t, f.Name()).Origin())
		}
	}
	return found
}

// wayTo is the shortest way from a function to one of those names.
func (c calls) wayTo(from *types.Func, names []string) []string {
	type way struct {
		at   *types.Func
		past []string
	}
	seen := map[*types.Func]bool{from: true}
	for todo := []way{{from, []string{from.Name()}}}; len(todo) > 0; todo = todo[1:] {
		for _, next := range c[todo[0].at] {
			past := append(slices.Clone(todo[0].past), next.Name())
			if slices.Contains(names, next.Name()) {
				return past
			}
			if !seen[next] {
				seen[next] = true
				todo = append(todo, way{next, past})
			}
		}
	}
	return nil
}

// handlers are the types that fulfil the contract, by their methods' names.
func (u *universe) handlers() []types.Type {
	return slices.DeleteFunc(u.named(), func(t types.Type) bool {
		return slices.ContainsFunc(contract(), func(name string) bool { return method(t, name) == nil })
	})
}

// pushing finds handlers that push.
func pushing(u *universe) []string {
	var found []string
	all := u.calls()
	for _, t := range u.handlers() {
		for _, name := range inLoop() {
			if f := method(t, name); f != nil {
				if way := all.wayTo(f.Origin(), pushes()); way != nil {
					found = append(found, strings.TrimPrefix(t.String(), "*"+module+"/")+": "+strings.Join(way, " -> "))
				}
			}
		}
	}
	return found
}

func TestHandlersNeverPush(t *testing.T) {
	g := NewWithT(t)
	u := newUniverse(t)
	var handlers []string
	for _, h := range u.handlers() {
		handlers = append(handlers, h.String())
	}
	g.Expect(handlers).To(ContainElements(HaveSuffix("ipam.IPAM"), HaveSuffix("podmanager.PodManager")), "the guard sees no handlers")
	g.Expect(pushing(u)).To(BeEmpty(), "what should follow goes through the transaction (FollowUp)")
}

func TestPushingHandlersAreFound(t *testing.T) {
	const handler = `package p
type loop interface { PushEvent(any) error; PushEventWait(any) error }
type Handler struct { loop loop; book book; keep func() }
func (h *Handler) HandlesEvent(any) bool { return true }
func (h *Handler) Resync(any) error { return nil }
func (h *Handler) Revert(any) error { return nil }
func (h *Handler) Serve() { h.loop.PushEvent(1) }
type book struct{}
func (book) Serve() {}
type store interface { Put() }
type fits struct { loop loop }
func (f *fits) Put() { f.loop.PushEventWait(1) }
func (f *fits) Other() {}
`
	for body, way := range map[string]string{
		`h.loop.PushEvent(e)`: "Update -> PushEvent",
		`h.help()`:            "Update -> help -> help2 -> PushEventWait",
		`f := h.help2; f()`:   "Update -> help2 -> PushEventWait",
		`go func() { _ = h.loop.PushEvent(e) }()`:          "Update -> PushEvent",
		`h.keep = h.Serve`:                                 "Update -> Serve -> PushEvent",
		`var s store = &fits{h.loop}; s.Put()`:             "Update -> Put -> PushEventWait",
		`h.book.Serve()`:                                   "",
		`var s interface { Other() } = &fits{}; s.Other()`: "",
	} {
		u := smallUniverse(t, handler, `package p
func (h *Handler) Update(e any) error { `+body+`; return nil }
func (h *Handler) help() { h.help2() }
func (h *Handler) help2() { _ = h.loop.PushEventWait(0) }
`)
		found := pushing(u)
		if way == "" {
			NewWithT(t).Expect(found).To(BeEmpty(), body)
		} else {
			NewWithT(t).Expect(found).To(ConsistOf("*p.Handler: "+way), body)
		}
	}
}
