// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapitest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ipam/ipamapi"
)

// together calls f for each worker at the same time and returns all results.
func together[T any](workers int, f func(worker int) []T) (all []T) {
	var mu sync.Mutex
	var wait sync.WaitGroup
	for w := range workers {
		wait.Add(1)
		go func() {
			defer wait.Done()
			got := f(w)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, got...)
		}()
	}
	wait.Wait()
	return all
}

func isFull(err error) bool {
	return errors.Is(err, ipamapi.ErrNoAvailableIPs) ||
		err != nil && strings.Contains(err.Error(), ipamapi.ErrNoAvailableIPs.Error())
}

func parallelFill(e *suite) {
	for _, x := range []struct {
		prefix, sub string
		size        int
		how         map[string]string
	}{
		{"10.1.0.0/29", "", 6, nil}, {"10.2.0.0/25", "", 126, nil}, {"10.3.0.0/24", "", 254, nil}, {"10.4.0.0/24", "", 254, serial()},
		{"10.5.0.0/16", "10.5.7.0/24", 256, nil},
	} {
		for _, workers := range []int{2, 8} {
			id := e.pool(x.prefix, x.sub)
			got := together(workers, func(int) (mine []string) {
				for range (x.size + 10) / workers * 2 {
					a, err := e.ask(id, "", x.how)
					if err == nil {
						mine = append(mine, a)
					} else if !isFull(err) {
						mine = append(mine, err.Error())
					}
				}
				return mine
			})
			slices.Sort(got)
			e.Expect(slices.Compact(got)).To(HaveLen(x.size), "%s by %d", x.prefix, workers)
			released := together(workers, func(w int) (errs []error) {
				for i := w; i < len(got); i += workers {
					ip, _, _ := strings.Cut(got[i], "/")
					errs = append(errs, e.ReleaseAddress(id, net.ParseIP(ip)))
				}
				return errs
			})
			e.Expect(released).To(HaveEach(BeNil()))
			e.fill(id, x.size, x.how)
			e.Expect(e.ReleasePool(id)).To(Succeed())
		}
	}
}

func parallelPools(e *suite) {
	type got struct{ id, prefix string }
	pools := together(8, func(int) (mine []got) {
		for range 32 {
			p, err := e.request("0.0.0.0/24", "")
			if err != nil {
				return append(mine, got{err.Error(), ""})
			}
			mine = append(mine, got{p.PoolID, p.Pool.String()})
		}
		return mine
	})
	ids, prefixes := map[string]bool{}, map[string]bool{}
	for _, p := range pools {
		ids[p.id], prefixes[p.prefix] = true, true
	}
	e.Expect(ids).To(HaveLen(256))
	e.Expect(prefixes).To(And(HaveLen(256), HaveKey("172.17.0.0/24"), HaveKey("172.17.255.0/24")), "the lowest ones")
	same := together(8, func(int) []string {
		p, err := e.request("10.1.0.0/16", "")
		if err != nil {
			return []string{err.Error()}
		}
		return []string{p.PoolID}
	})
	e.Expect(same).To(And(HaveLen(8), HaveEach(same[0])), "one ID, no error")
	for _, id := range same {
		e.Expect(e.ReleasePool(id)).To(Succeed())
	}
	e.pool("10.1.0.0/17", "")
}

// race lets callers take and release addresses of a pool that is too small for
// them. No two callers may hold one address.
func race(e *suite) {
	id := e.pool("10.6.0.0/27", "")
	var mu sync.Mutex
	holds := map[string]int{}
	failures := together(8, func(w int) (failed []string) {
		rnd, mine := rand.New(rand.NewPCG(uint64(w), 5)), []string{}
		for range 150 {
			if len(mine) > 0 && rnd.IntN(2) == 0 {
				i := rnd.IntN(len(mine))
				a := mine[i]
				mine = slices.Delete(mine, i, i+1)
				mu.Lock()
				delete(holds, a)
				mu.Unlock()
				ip, _, _ := strings.Cut(a, "/")
				if err := e.ReleaseAddress(id, net.ParseIP(ip)); err != nil {
					failed = append(failed, err.Error())
				}
				continue
			}
			how := []map[string]string{nil, serial(), endpoint(fmt.Sprint("w", w), "")}[rnd.IntN(3)]
			a, err := e.ask(id, "", how)
			if err != nil {
				if !isFull(err) {
					failed = append(failed, err.Error())
				}
				continue
			}
			mu.Lock()
			if other, ok := holds[a]; ok {
				failed = append(failed, fmt.Sprintf("%s is held by %d and was given to %d", a, other, w))
			}
			holds[a] = w
			mu.Unlock()
			mine = append(mine, a)
		}
		return failed
	})
	e.Expect(failures).To(BeEmpty())
}
