// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// scraper is a client of an agent's listener for metrics.
type scraper struct {
	client *http.Client
	url    string
}

func newScraper(url string, config *tls.Config) scraper {
	return scraper{&http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}, url}
}

func (s scraper) get(path string) (status int, body string, err error) {
	r, err := s.client.Get(s.url + path)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return r.StatusCode, string(text), err
}

// expectMetrics reads what a scraper wants, and what it must not get.
func (s scraper) expectMetrics(g Gomega) {
	for _, path := range []string{localapi.PathReadyz, localapi.PathHealthz} { // an agent serves before it is ready
		g.Eventually(func() (string, error) {
			_, body, err := s.get(path)
			return body, err
		}, patience).Should(Equal("ok\n"), path)
	}
	code, body, err := s.get(localapi.PathMetrics)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(code).To(Equal(http.StatusOK))
	g.Expect(strings.Split(body, "\n")).To(ContainElement(HavePrefix("cadastre_leases{")))
	for _, path := range []string{localapi.PathStatus, localapi.PathLeases, localapi.PathEvents, localapi.PathCheck, localapi.PathBackup, "/debug/pprof/"} {
		code, _, err = s.get(path)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(code).To(Equal(http.StatusNotFound), path)
	}
}

// configure writes a node's configuration, with a listener for metrics. %s is the
// node's directory.
func (n *node) configure(g Gomega, metrics string) {
	conf := strings.Replace(smallConf, "cadastre: {", "cadastre: {metrics: {enabled: true, "+strings.ReplaceAll(metrics, "%s", n.dir)+"}, ", 1)
	g.Expect(os.WriteFile(n.conf, []byte(conf), 0o600)).To(Succeed())
}

func TestMetricsAreScraped(t *testing.T) {
	t.Run("on a loopback address", func(t *testing.T) {
		g := NewWithT(t)
		n, address := newNode(t, ""), freePort(g)
		n.configure(g, fmt.Sprintf("listen: %q", address))
		n.start(t)
		newScraper("http://"+address, nil).expectMetrics(g)
	})

	t.Run("with TLS, whose certificate is renewed", func(t *testing.T) {
		g := NewWithT(t)
		n, address := newNode(t, ""), freePort(g)
		certificate(g, n.dir)
		_, port, _ := strings.Cut(address, ":")
		n.configure(g, fmt.Sprintf("listen: %q, cert: %%s/cert.pem, key: %%s/key.pem", ":"+port))
		n.start(t)
		first := newScraper("https://"+address, n.trusting(g))
		first.expectMetrics(g)
		certificate(g, n.dir)
		newScraper("https://"+address, n.trusting(g)).expectMetrics(g)
		_, _, err := first.get(localapi.PathMetrics)
		g.Expect(err).To(MatchError(ContainSubstring("certificate")), "the first certificate is not used any more")
		g.Expect(os.WriteFile(filepath.Join(n.dir, "key.pem"), []byte("torn"), 0o600)).To(Succeed())
		newScraper("https://"+address, n.trusting(g)).expectMetrics(g)
	})

	t.Run("with certificates of clients", func(t *testing.T) {
		g := NewWithT(t)
		n, address := newNode(t, ""), freePort(g)
		certificate(g, n.dir)
		n.configure(g, fmt.Sprintf("listen: %q, cert: %%s/cert.pem, key: %%s/key.pem, clientCA: %%s/cert.pem", address))
		n.start(t)
		config := n.trusting(g)
		scrape := func() error {
			_, _, err := newScraper("https://"+address, config).get(localapi.PathMetrics)
			return err
		}
		g.Eventually(scrape, patience, 20*time.Millisecond).Should(MatchError(ContainSubstring("certificate required")))
		own, err := tls.LoadX509KeyPair(filepath.Join(n.dir, "cert.pem"), filepath.Join(n.dir, "key.pem"))
		g.Expect(err).NotTo(HaveOccurred())
		config = config.Clone()
		config.Certificates = []tls.Certificate{own}
		newScraper("https://"+address, config).expectMetrics(g)
	})

	// Every local user may listen on such a port before the agent does.
	t.Run("on a port that another program has", func(t *testing.T) {
		g := NewWithT(t)
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		g.Expect(err).NotTo(HaveOccurred())
		defer taken.Close()
		n, address := newNode(t, ""), taken.Addr().String()
		n.configure(g, fmt.Sprintf("listen: %q", address))
		n.start(t)
		k, addresses := n.mustAdd(t, "pod")
		g.Expect(addresses).NotTo(BeEmpty())
		_, fate, err := ask(n.socket(), k.request(Del), leaving{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(fate).To(Equal(Answered))
		notes := func() (string, error) {
			s, err := n.status()
			return strings.Join(s.Notes, "\n"), err
		}
		g.Expect(notes()).To(ContainSubstring("metrics.listen " + address))
		g.Expect(taken.Close()).To(Succeed())
		newScraper("http://"+address, nil).expectMetrics(g)
		g.Expect(notes()).NotTo(ContainSubstring(address))
	})

	t.Run("not in plain text from other machines", func(t *testing.T) {
		g := NewWithT(t)
		for _, address := range []string{":10262", "0.0.0.0:10262", "[::]:10262", "192.0.2.1:10262"} {
			n := newNode(t, "")
			n.configure(g, fmt.Sprintf("listen: %q", address))
			said := n.launch(t).mustEnd(t)
			g.Expect(said).To(ContainSubstring(fmt.Sprintf(
				"cadastre.metrics.listen: %q is not a loopback address, and has no TLS: set cert and key, or write 127.0.0.1:10262", address)))
		}
	})
}
