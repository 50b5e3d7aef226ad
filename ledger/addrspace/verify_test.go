// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import (
	"fmt"
	"math/bits"
)

// verify checks every word of the index against its definition, that nothing
// is there that is not needed, and that what lies on the shelves is fit for use.
func verify(s *Space) error {
	c := census{nodes: make([]int, len(s.nodes))}
	if err := c.node(s.root); err != nil {
		return err
	}
	if c.free != s.free {
		return fmt.Errorf("counted %v free, have %v", c.free, s.free)
	}
	if s.pages.used != c.pages || len(s.pages.idle) > c.pages+few {
		return fmt.Errorf("counted %d pages, have %d and %d idle", c.pages, s.pages.used, len(s.pages.idle))
	}
	for _, p := range s.pages.idle {
		if order, err := c.page(p); err != nil || order >= 0 && order != pageBits {
			return fmt.Errorf("idle page of order %d: %w", order, err)
		}
	}
	for i, freeList := range s.nodes {
		if freeList.used != c.nodes[i] || len(freeList.idle) > c.nodes[i]+few {
			return fmt.Errorf("size %d: counted %d nodes, have %d and %d idle", 6*i, c.nodes[i], freeList.used, len(freeList.idle))
		}
		for _, n := range freeList.idle {
			if err := c.idle(n, 6*i); err != nil {
				return err
			}
		}
	}
	return nil
}

// census counts what a Space consists of.
type census struct {
	free  u128
	pages int
	nodes []int // by size/6
}

// page returns the order of p.
func (c *census) page(p *page) (order int, err error) {
	order = -1
	var want [64]int
	for i, w := range p.words {
		want[i] = wholes(w)
		order = max(order, want[i])
	}
	if p.byOrder[7] != 0 {
		order = 6 + wholes(p.byOrder[7])
	}
	return order, haveOrders(p.byOrder[:], &p.orders, &want)
}

// haveOrders checks that slots are known to have the orders want, and no others.
func haveOrders(byOrder []uint64, orders *[64]int8, want *[64]int) error {
	words := make([]uint64, len(byOrder))
	for d, o := range want {
		if int(orders[d]) != o {
			return fmt.Errorf("slot %d has order %d, not %d", d, o, orders[d])
		}
		words[o+1] |= 1 << d
	}
	for i := range words {
		if words[i] != byOrder[i] {
			return fmt.Errorf("slots of order %d: %064b, want %064b", i-1, byOrder[i], words[i])
		}
	}
	return nil
}

// wholes returns the order of the longest aligned run in w, -1 where it is 0.
func wholes(w uint64) int {
	if w == 0 {
		return -1
	}
	for r := 6; ; r-- {
		for i := 0; i < 64; i += 1 << r {
			if m := ^uint64(0) >> (64 - 1<<r) << i; w&m == m {
				return r
			}
		}
	}
}

// node checks n and all below it.
func (c *census) node(n *node) error {
	if err := c.shape(n); err != nil {
		return err
	}
	order := -1
	var want [64]int
	for d := range want {
		slot, err := c.slot(n, uint(d))
		if err != nil {
			return fmt.Errorf("size %d slot %d: %w", n.size, d, err)
		}
		want[d] = slot
		order = max(order, slot)
	}
	if err := haveOrders(n.byOrder, &n.orders, &want); err != nil {
		return fmt.Errorf("size %d: %w", n.size, err)
	}
	if got := bits.OnesCount64(n.paged & n.free()); got > freePages {
		return fmt.Errorf("%d pages are kept that are all free", got)
	}
	if n.free() != 0 {
		order = int(n.size) + wholes(n.free())
	}
	if n.order != order {
		return fmt.Errorf("node of size %d and order %d, want %d", n.size, n.order, order)
	}
	return nil
}

// slot returns the order of slot d of n. It counts what is in it.
func (c *census) slot(n *node, d uint) (order int, err error) {
	all := pow2(uint(n.size))
	switch {
	case n.pages != nil && int(d) < len(n.pages) && n.pages[d] != nil:
		p := n.pages[d]
		c.pages++
		for _, w := range p.words {
			c.free = c.free.add(u64(uint64(bits.OnesCount64(w))))
		}
		if n.paged&(1<<d) == 0 {
			return 0, fmt.Errorf("page that is not known of")
		}
		return c.page(p)
	case n.paged&(1<<d) != 0:
		return 0, fmt.Errorf("missing page")
	case n.kids != nil && int(d) < len(n.kids) && n.kids[d] != nil:
		return c.kid(n, d, n.kids[d])
	case n.free()&(1<<d) != 0:
		c.free = c.free.add(all)
		return int(n.size), nil
	}
	return -1, nil
}

func (c *census) kid(n *node, d uint, kid *node) (order int, err error) {
	c.nodes[kid.size/6]++
	if kid.up != n || kid.size >= n.size || !n.has(kid.first) || n.digit(kid.first) != d {
		return 0, fmt.Errorf("node of size %d misplaced", kid.size)
	}
	if err := c.node(kid); err != nil {
		return 0, err
	}
	between := kid.size+6 < n.size
	if kid.skips != between {
		return 0, fmt.Errorf("node of size %d skips: %v", kid.size, kid.skips)
	}
	if kid.order == int(kid.size)+6 || kid.order < 0 {
		return 0, fmt.Errorf("needless node of size %d, all free or all taken", kid.size)
	}
	order = kid.order
	if between && kid.fill { // the sizes left out have 63 free slots each
		order = int(n.size) - 6 + 5
		c.free = c.free.add(pow2(uint(n.size)).sub(pow2(uint(kid.size) + 6)))
	}
	return order, nil
}

// shape checks what is the same for all nodes.
func (c *census) shape(n *node) error {
	if n.size%6 != 0 || n.size < pageBits || len(n.byOrder) != int(n.size)+2 || (n.pages != nil) != (n.size == pageBits) || (n.pages == nil) == (n.kids == nil) {
		return fmt.Errorf("malformed node of size %d", n.size)
	}
	if !n.first.and(ones(uint(n.size) + 6)).isZero() {
		return fmt.Errorf("node of size %d begins at %v", n.size, n.first)
	}
	return nil
}

// idle checks a node that is kept for later: all free or all taken, nothing below.
func (c *census) idle(n *node, size int) error {
	for d := range 64 {
		if n.pages != nil && n.pages[d] != nil || n.kids != nil && n.kids[d] != nil {
			return fmt.Errorf("idle node of size %d has something in slot %d", n.size, d)
		}
	}
	if int(n.size) != size || n.order >= 0 && n.order != size+6 {
		return fmt.Errorf("idle node of size %d and order %d on the freeList of size %d", n.size, n.order, size)
	}
	before := *c
	err := c.node(n)
	c.free = before.free
	return err
}

// inUse returns the number of nodes and pages below the root.
func (s *Space) inUse() int {
	n := s.pages.used
	for _, freeList := range s.nodes {
		n += freeList.used
	}
	return n
}
