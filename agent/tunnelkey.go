// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/ecdh"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tunnelKey holds the keys of this node's WireGuard tunnel, in base64; the zero tunnelKey
// stands for none.
type tunnelKey struct{ private, public string }

// tunnelKeyFile names the file of the private key in the state directory. The database
// does not have the key, so a backup has none.
const tunnelKeyFile = "wireguard.key"

// openTunnelKey returns the keys of the state directory. The first call makes them: the
// other nodes know the public key, so a restart must not change it.
func openTunnelKey(stateDir string, random io.Reader) (tunnelKey, error) {
	path := filepath.Join(stateDir, tunnelKeyFile)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeTunnelKey(path, random)
	}
	if err != nil {
		return tunnelKey{}, fmt.Errorf("read the WireGuard key of this node: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return tunnelKey{}, fmt.Errorf(
			"read the WireGuard key of this node: %s has mode %s: want a regular file of mode 0600",
			path,
			info.Mode(),
		)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return tunnelKey{}, fmt.Errorf("read the WireGuard key of this node: %w", err)
	}
	private := strings.TrimSpace(string(text))
	bytes, err := base64.StdEncoding.DecodeString(private)
	if err == nil {
		var key *ecdh.PrivateKey
		if key, err = ecdh.X25519().NewPrivateKey(bytes); err == nil {
			return tunnelKey{private, base64.StdEncoding.EncodeToString(key.PublicKey().Bytes())}, nil
		}
	}
	// err would have the key
	return tunnelKey{}, fmt.Errorf("read the WireGuard key of this node: %s does not hold 32 bytes in base64: "+
		"remove the file, and the agent makes a new key", path)
}

// makeTunnelKey writes a new private key to path, and returns the keys once it is durable.
func makeTunnelKey(path string, random io.Reader) (tunnelKey, error) {
	key, err := ecdh.X25519().GenerateKey(random)
	if err != nil {
		return tunnelKey{}, fmt.Errorf("make the WireGuard key of this node: %w", err)
	}
	keys := tunnelKey{
		private: base64.StdEncoding.EncodeToString(key.Bytes()),
		public:  base64.StdEncoding.EncodeToString(key.PublicKey().Bytes()),
	}
	file, err := os.CreateTemp(filepath.Dir(path), tunnelKeyFile+".new-*") // mode 0600
	if err != nil {
		return tunnelKey{}, fmt.Errorf("make the WireGuard key of this node: %w", err)
	}
	_, err = file.WriteString(keys.private + "\n")
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return tunnelKey{}, fmt.Errorf("make the WireGuard key of this node: %w", err)
	}
	return keys, nil
}
