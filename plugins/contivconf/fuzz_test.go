// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzParse: Parse returns for any input, and a file that it accepts is valid
// and gives every node ID up to the largest its addresses.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/good/*.conf", "testdata/bad/*.conf", "../../conf/*.conf"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			f.Fatalf("no seeds %s: %v", pattern, err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
			f.Add(uncommented(data))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, _, err := Parse(data)
		if err != nil {
			if cfg != nil || err.Error() == "" {
				t.Fatalf("an error without a reason: %v", err)
			}
			return
		}
		if err := cfg.Validate(); err != nil {
			t.Fatalf("parsed, but not valid: %v", err)
		}
		for _, id := range []uint32{1, cfg.Cadastre.NodeID, cfg.IPAM.Cluster.MaxNodeID()} {
			if _, err := cfg.IPAM.Cluster.Node(max(1, id)); err != nil {
				t.Fatalf("parsed, but node %d has no plan: %v", id, err)
			}
		}
	})
}
