// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcdtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// The files of a server with TLS.
const (
	caCert     = "ca.pem"
	serverCert = "server.pem"
	serverKey  = "server-key.pem"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// writeCertificates makes all that a server with TLS needs in dir, and answers
// what its clients need.
func writeCertificates(dir string) (*tls.Config, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	server, err := ca.issue("server", 2)
	if err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	client, err := ca.issue("client", 3)
	if err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(server.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	for _, f := range []struct {
		name, kind string
		data       []byte
	}{
		{caCert, "CERTIFICATE", ca.cert.Raw},
		{serverCert, "CERTIFICATE", server.Certificate[0]},
		{serverKey, "PRIVATE KEY", key},
	} {
		text := pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.data})
		if err := os.WriteFile(filepath.Join(dir, f.name), text, 0o600); err != nil {
			return nil, fmt.Errorf("make certificates: %w", err)
		}
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{client}, MinVersion: tls.VersionTLS12}, nil
}

// template is a certificate that is valid in any year a test may run in.
func template(name string, serial int64) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: "etcdtest " + name},
		NotBefore:    time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
	}
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := template("authority", 1)
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert, key}, err
}

// issue makes a certificate for both ends of a connection on this host.
func (a *authority) issue(name string, serial int64) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	t := template(name, serial)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	t.DNSNames = []string{"localhost"}
	t.IPAddresses = append(t.IPAddresses, netip.AddrFrom4([4]byte{127, 0, 0, 1}).AsSlice())
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
