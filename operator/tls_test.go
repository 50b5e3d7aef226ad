// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// certificate writes a certificate for 127.0.0.1, which is its own authority, and its
// key; it returns their paths.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	g := NewWithT(t)
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	template.IPAddresses = append(template.IPAddresses, netip.AddrFrom4([4]byte{127, 0, 0, 1}).AsSlice())
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	g.Expect(err).NotTo(HaveOccurred())
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	g.Expect(err).NotTo(HaveOccurred())
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	g.Expect(os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)).To(Succeed())
	g.Expect(os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600)).To(Succeed())
	return cert, key
}

// TestMetricsOverTLS: everything is encrypted; with authorities of clients, metrics
// need a certificate, and probes do not, because a kubelet has none.
func TestMetricsOverTLS(t *testing.T) {
	cert, key := certificate(t)
	own, err := tls.LoadX509KeyPair(cert, key)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for name, c := range map[string]struct {
		flags  []string
		client []tls.Certificate
		want   int // of /metrics
	}{
		"without authorities of clients": {nil, nil, http.StatusOK},
		"a client without a certificate": {[]string{"--client-ca-file=" + cert}, nil, http.StatusForbidden},
		"a client with a certificate":    {[]string{"--client-ca-file=" + cert}, []tls.Certificate{own}, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			defer s.store.Close()
			p := s.start("one", nil, append(all("--bind-address=127.0.0.1:0", "--tls-cert-file="+cert, "--tls-private-key-file="+key), c.flags...)...)
			at := (<-p.addr).String()
			text, err := os.ReadFile(cert)
			s.Expect(err).NotTo(HaveOccurred())
			config := &tls.Config{RootCAs: x509.NewCertPool(), Certificates: c.client}
			s.Expect(config.RootCAs.AppendCertsFromPEM(text)).To(BeTrue())
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}
			for path, want := range map[string]int{"/livez": http.StatusOK, "/healthz": http.StatusOK, "/metrics": c.want} {
				r, err := client.Get("https://" + at + path)
				s.Expect(err).NotTo(HaveOccurred())
				s.Expect(r.Body.Close()).To(Succeed())
				s.Expect(r.StatusCode).To(Equal(want), path)
			}
			plain, err := client.Get("http://" + at + "/livez")
			s.Expect(err).NotTo(HaveOccurred())
			s.Expect(plain.Body.Close()).To(Succeed())
			s.Expect(plain.StatusCode).To(Equal(http.StatusBadRequest), "plain text is not answered")
			s.Expect(p.stop()).To(BeZero(), "%s", &p.log)
		})
	}
}
