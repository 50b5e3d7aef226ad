// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"fmt"

	"go.fd.io/govpp/binapi/ip"

	"github.com/cadastre/cadastre/southbound"
)

func (x *change) makeTable(t table) error {
	for _, six := range []bool{false, true} {
		id := tableID{t.id, six}
		name, found := x.st.tables[id]
		switch {
		case found && name == t.name:
			continue
		case found:
			return fmt.Errorf("%w: table %d has name %q, not %q", southbound.ErrForeign, t.id, name, t.name)
		}
		err := x.do(fmt.Sprintf("make table %d", t.id), &ip.IPTableAddDelV2{
			Table:      ip.IPTable{TableID: t.id, IsIP6: six, Name: t.name},
			CreateMfib: true,
			IsAdd:      true,
		})
		if err != nil {
			return err
		}
		x.st.tables[id] = t.name
	}
	return nil
}

func (x *change) removeTable(id uint32) error {
	for _, six := range []bool{false, true} {
		if roleOf(x.st.tables[tableID{id, six}]) == "" {
			continue
		}
		err := x.do(fmt.Sprintf("remove table %d", id), &ip.IPTableAddDelV2{
			Table:      ip.IPTable{TableID: id, IsIP6: six},
			CreateMfib: true,
		})
		if err != nil {
			return err
		}
		delete(x.st.tables, tableID{id, six})
	}
	return nil
}
