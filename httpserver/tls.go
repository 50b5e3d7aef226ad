// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"time"
)

// Files names the PEM files of a TLS listener.
type Files struct {
	Cert, Key string
	ClientCA  string // authorities of the certificates that callers need; empty: callers need none
}

// Config reads the files. A certificate that is renewed in its file is used from the
// next connection on, unless it cannot be read: then the one before it stays.
func (f Files) Config() (*tls.Config, error) {
	k := &keyPair{files: f}
	if err := k.reload(); err != nil {
		return nil, fmt.Errorf("load the TLS certificate %q with key %q: %w", f.Cert, f.Key, err)
	}
	c := &tls.Config{GetCertificate: k.get, MinVersion: tls.VersionTLS12}
	if f.ClientCA == "" {
		return c, nil
	}
	text, err := os.ReadFile(f.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("load the authorities of clients: %w", err)
	}
	c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !c.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf(
			"load the authorities of clients: %s has no certificate: want a PEM file with at least one",
			f.ClientCA,
		)
	}
	return c, nil
}

// keyPair is a certificate with its key, as the files have it.
type keyPair struct {
	files Files

	mu   sync.Mutex
	cert *tls.Certificate
	of   time.Time // the latest change of the files that cert was read from
}

// get returns the certificate for a new connection.
func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	_ = k.reload() // the certificate that is loaded stays
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cert, nil
}

// reload reads the files if they have changed.
func (k *keyPair) reload() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var newest time.Time
	for _, path := range []string{k.files.Cert, k.files.Key} {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if t := info.ModTime(); t.After(newest) {
			newest = t
		}
	}
	if k.cert != nil && newest.Equal(k.of) {
		return nil
	}
	cert, err := tls.LoadX509KeyPair(k.files.Cert, k.files.Key)
	if err != nil {
		return err
	}
	k.cert, k.of = &cert, newest
	return nil
}
