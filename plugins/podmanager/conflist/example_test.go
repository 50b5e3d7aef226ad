// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package conflist_test

import (
	"fmt"

	"github.com/cadastre/cadastre/plugins/podmanager/conflist"
)

// A list with the portmap of a distribution that does not speak 1.1.0 yet.
func ExampleList_Render() {
	text, err := conflist.List{Network: "cadastre", PortMap: []string{"0.4.0", "1.0.0"}}.Render()
	if err != nil {
		panic(err)
	}
	fmt.Print(string(text))
	// Output:
	// {
	//   "cniVersion": "1.0.0",
	//   "cniVersions": [
	//     "0.4.0",
	//     "1.0.0"
	//   ],
	//   "name": "cadastre",
	//   "plugins": [
	//     {
	//       "type": "cadastre-cni",
	//       "capabilities": {
	//         "ips": true,
	//         "mac": true
	//       }
	//     },
	//     {
	//       "type": "portmap",
	//       "capabilities": {
	//         "portMappings": true
	//       }
	//     }
	//   ]
	// }
}
