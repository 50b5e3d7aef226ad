// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cadastre/cadastre/ipam/datastore"
)

// A store on a checkpoint file, its restart, and a pod that is deleted twice.
func Example() {
	dir, err := os.MkdirTemp("", "datastore")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	open := func() (*datastore.DataStore, error) {
		ds := datastore.NewDataStore(nil, datastore.NewJSONFile(filepath.Join(dir, "ipam.json")))
		return ds, errors.Join(
			ds.AddENI("eni-1", 0, true, false),
			ds.AddIPv4AddressToStore("eni-1", "10.0.0.5"),
			ds.AddIPv4AddressToStore("eni-1", "10.0.0.6"),
			ds.ReadBackingStore(),
		)
	}
	key := datastore.IPAMKey{NetworkName: "aws-cni", ContainerID: "4f1c", IfName: "eth0"}
	for range 2 {
		ds, err := open()
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(ds.AssignPodIPv4Address(key))
	}
	ds, err := open()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(ds.UnassignPodIPv4Address(key))
	_, _, err = ds.UnassignPodIPv4Address(key)
	fmt.Println(err)
	fmt.Println(ds.FreeableIPs("eni-1"), "the second one is cooling")
	// Output:
	// 10.0.0.5 0 <nil>
	// 10.0.0.5 0 <nil>
	// 10.0.0.5 0 <nil>
	// datastore: unknown pod
	// [10.0.0.6 10.0.0.5] the second one is cooling
}
