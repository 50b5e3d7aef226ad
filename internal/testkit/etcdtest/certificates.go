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
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// The files of a server with TLS, and of its clients.
const (
	caCert     = "ca.pem"
	serverCert = "server.pem"
	serverKey  = "server-key.pem"
	clientCert = "client.pem"
	clientKey  = "client-key.pem"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// writeCertificates makes all that a server with TLS and its clients need in
// dir, and answers what the clients need.
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
	err = errors.Join(
		write(dir, caCert, "CERTIFICATE", ca.cert.Raw),
		writePair(dir, serverCert, serverKey, server),
		writePair(dir, clientCert, clientKey, client),
	)
	if err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{client}, MinVersion: tls.VersionTLS12}, nil
}

// writePair writes a certificate and its key.
func writePair(dir, cert, key string, pair tls.Certificate) error {
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		return err
	}
	return errors.Join(write(dir, cert, "CERTIFICATE", pair.Certificate[0]), write(dir, key, "PRIVATE KEY", der))
}

func write(dir, name, kind string, der []byte) error {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	return os.WriteFile(filepath.Join(dir, name), text, 0o600)
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
