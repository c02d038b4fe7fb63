package probe_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/dataplane/probe"
	"vipd/test/wait"
)

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nready"

func TestTCP(t *testing.T) {
	quiet(t)
	expect := func(h *balancer.Health) { h.Send, h.Expect = "PING\r\n\r\n", "PONG" }
	for _, c := range []struct {
		name   string
		handle func(net.Conn)
		change func(*balancer.Health)
		want   health.Outcome
		text   string
	}{
		{"connected", stuck, nil, health.Passed, "connected"},
		{"sent only", stuck, func(h *balancer.Health) { h.Send = "QUIT" }, health.Passed, "connected, and sent 4 bytes"},
		{"expected", answerWith("+PONG\r\n"), expect, health.Passed, "answered as expected"},
		{"greeting", func(c net.Conn) { _, _ = io.WriteString(c, "220 mail ready") }, func(h *balancer.Health) { h.Expect = "220 " }, health.Passed, "answered as expected"},
		{"unexpected", func(c net.Conn) { answerWith("-ERR no\r\n")(c); stuck(c) }, expect, health.Failed, `answered "-ERR no\r\n", without the expected "PONG" within 300ms`},
		{"unexpected and closed", answerWith("-ERR no\r\n"), expect, health.Failed, `answered "-ERR no\r\n", without the expected "PONG", and the connection was closed`},
		{"half-open", stuck, expect, health.Failed, "connected, but no data arrived within 300ms"},
		{"hangs up", answerWith(""), expect, health.Failed, "closed the connection without sending data"},
		{"endless", endless("", "no"), expect, health.Failed, `the first 64 KiB of the answer do not contain the expected "PONG"`},
		{"answers and resets", answersUnread("+PONG"), expect, health.Passed, "answered as expected"},
		{"across reads", func(c net.Conn) {
			_ = readRequest(c)
			for _, b := range []byte("+PONG") {
				_, _ = c.Write([]byte{b})
				time.Sleep(5 * time.Millisecond) // without this pause, a single read might return several bytes
			}
		}, func(h *balancer.Health) { expect(h); h.Timeout = 10 * time.Second }, health.Passed, "answered as expected"},
	} {
		t.Run(c.name, func(t *testing.T) { check(t, define(balancer.TCPHealth, c.change), serve(t, c.handle), c.want, c.text) })
	}
	t.Run("refused", func(t *testing.T) {
		check(t, define(balancer.TCPHealth, nil), closedPort(t), health.Failed, "connection refused")
	})
}

// redis returns a handler that answers like a Redis server with a password and a role. It waits
// until a number of commands has arrived, and then sends all answers, in writes of at most part
// bytes.
func redis(role string, commands, part int) func(net.Conn) {
	return func(c net.Conn) {
		lines := bufio.NewReader(c)
		authorized := false
		var answers strings.Builder
		for n := 1; ; n++ {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			switch {
			case line == "AUTH secret\r\n":
				authorized = true
				answers.WriteString("+OK\r\n")
			case !authorized:
				answers.WriteString("-NOAUTH Authentication required.\r\n")
			case line == "PING\r\n":
				answers.WriteString("+PONG\r\n")
			default:
				fmt.Fprintf(&answers, "$29\r\n# Replication\r\nrole:%s\r\n", role)
			}
			if n < commands {
				continue
			}
			for data := range slices.Chunk([]byte(answers.String()), part) {
				if _, err := c.Write(data); err != nil {
					return
				}
			}
			answers.Reset()
		}
	}
}

// TestTCPSteps checks a server that behaves like Redis with a check that has several steps. The
// verdict must not depend on how packets divide the answers. If a step fails, the result must
// contain the step and the server's answer.
func TestTCPSteps(t *testing.T) {
	quiet(t)
	auth, ping := balancer.HealthStep{Send: "AUTH secret\r\n", Expect: "+OK"}, balancer.HealthStep{SendHex: "50494e470d0a", ExpectHex: "2b504f4e47"}
	info := balancer.HealthStep{Send: "INFO replication\r\n", ExpectRegexp: `role:(master|primary)\r`}
	quit := balancer.HealthStep{Send: "QUIT\r\n"}
	batch := []balancer.HealthStep{{Send: auth.Send}, {Send: "PING\r\n"}, {Send: info.Send, Expect: auth.Expect}, {Expect: "+PONG"}, {ExpectRegexp: info.ExpectRegexp}}
	for _, c := range []struct {
		name   string
		handle func(net.Conn)
		steps  []balancer.HealthStep
		want   health.Outcome
		text   string
	}{
		{"primary", redis("master", 1, 1000), []balancer.HealthStep{auth, ping, info, quit}, health.Passed, "passed all 4 steps"},
		{"primary, byte by byte", redis("master", 1, 1), []balancer.HealthStep{auth, ping, info}, health.Passed, "passed all 3 steps"},
		{"primary, coalesced", redis("master", 3, 1000), batch, health.Passed, "passed all 5 steps"},
		{"replica", redis("slave", 1, 3), []balancer.HealthStep{auth, ping, info}, health.Failed, `step 3 of 3: answered "\r\n$29\r\n# Replication\r\nrole:slave\r\n", without a match for "role:(master|primary)\\r" within 300ms`},
		{"no password", redis("master", 1, 1000), []balancer.HealthStep{ping, info}, health.Failed, `step 1 of 2: answered "-NOAUTH Authentication required.\r\n", without the expected "+PONG" within 300ms`},
		{"closed in between", answerWith("+OK\r\n"), []balancer.HealthStep{{Send: "\r\n\r\n", Expect: "+OK\r\n"}, ping}, health.Failed, "step 2 of 2: c"},
		{"wrong order", redis("master", 1, 1000), []balancer.HealthStep{auth, info, {Expect: "+PONG"}}, health.Failed, `step 3 of 3: answered "\n", without the expected "+PONG" within 300ms`},
		{"one step", redis("master", 1, 1000), []balancer.HealthStep{auth}, health.Passed, "answered as expected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, define(balancer.TCPHealth, func(h *balancer.Health) { h.Steps = c.steps }), serve(t, c.handle), c.want, c.text)
		})
	}
}

// TestStepsTranscript records the exchange of a check that has several steps. The transcript must
// name each step.
func TestStepsTranscript(t *testing.T) {
	h := define(balancer.TCPHealth, func(h *balancer.Health) {
		h.Steps, h.Timeout = []balancer.HealthStep{{Send: "AUTH secret\r\n", Expect: "+OK"}, {Send: "PING\r\n", Expect: "+PONG"}}, wait.Patience
	})
	_, text := newProbe(h, balancer.TCP).Exchange(t.Context(), serve(t, redis("master", 1, 1000)))
	if want := "* step 1 of 2\n> (13 bytes)\n< +OK\n* step 2 of 2\n> (6 bytes)\n< +PONG\n* passed after "; !strings.Contains(text, want) {
		t.Errorf("transcript = %q, want it to contain %q", text, want)
	}
}

// TestSentSecrets checks servers that repeat the passwords that they receive. Neither the result
// nor the transcript may contain the passwords, but everything else in an answer must remain
// readable.
func TestSentSecrets(t *testing.T) {
	quiet(t)
	const refusal = "-ERR unknown command 'AUTH', with args beginning with: 's\\cret' 'now'\r\n"
	for _, c := range []struct {
		name, answer string
		change       func(*balancer.Health)
		text         string
	}{
		{"step", refusal, func(h *balancer.Health) {
			h.Steps = []balancer.HealthStep{{Send: "AUTH s\\cret now\r\n", Expect: "+OK"}}
		},
			`answered "-ERR unknown command 'AUTH', with args beginning with: '(hid"..., without the expected "+OK"`},
		{"hexadecimal step", "bad s\\cret\r\n", func(h *balancer.Health) {
			h.Steps = []balancer.HealthStep{{SendHex: "00757365720073" + "5c6372657400", Expect: "+OK"}}
		},
			`answered "bad (hidden)\r\n", without`},
		{"single word", "bad s\\cret\r\n", func(h *balancer.Health) { h.Send, h.Expect = "s\\cret\r\n", "+OK" }, `answered "bad (hidden)\r\n", without`},
		{"several lines", "bad s\\cret\r\n", func(h *balancer.Health) { h.Send, h.Expect = "USER me\r\nPASS 's\\cret'\r\n", "+OK" }, `answered "bad (hidden)\r\n", without`},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer := func(conn net.Conn) {
				if n, err := conn.Read(make([]byte, 1024)); err == nil && n > 0 {
					_, _ = io.WriteString(conn, c.answer)
				}
			}
			r, text := newProbe(define(balancer.TCPHealth, c.change), balancer.TCP).Exchange(t.Context(), serve(t, answer))
			if r.Outcome != health.Failed || !strings.Contains(r.Text, c.text) {
				t.Errorf("result = %s %q, want a failure that contains %q", r.Outcome, r.Text, c.text)
			}
			if strings.Contains(r.Text+text, "cret") || !strings.Contains(text, "(hidden)") || !strings.Contains(text, " bytes)\n") {
				t.Errorf("result = %q, transcript =\n%s\nwant no secret in the result or the transcript", r.Text, text)
			}
		})
	}
}

func TestHTTP(t *testing.T) {
	quiet(t)
	expect := func(h *balancer.Health) { h.Expect = "ready" }
	for _, c := range []struct {
		name   string
		handle func(net.Conn)
		change func(*balancer.Health)
		want   health.Outcome
		text   string
	}{
		{"ok", answerWith(ok), nil, health.Passed, "answered 200 OK"},
		{"ok, without a length", answerWith("HTTP/1.0 200 OK\r\n\r\nready"), expect, health.Passed, "answered 200 OK"},
		{"ok, in chunks", answerWith("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nrea\r\n2\r\ndy\r\n0\r\n\r\n"), expect, health.Passed, "answered 200 OK"},
		{"100 Continue first", answerWith("HTTP/1.1 100 Continue\r\n\r\n" + ok), nil, health.Passed, "answered 200 OK"},
		{"no content", answerWith("HTTP/1.1 204 No Content\r\n\r\n"), nil, health.Passed, "answered 204 No Content"},
		{"redirect", answerWith("HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n"), nil, health.Passed, "answered 302 Found"},
		{"wrong status", answerWith("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"), nil, health.Failed, "answered 503 Service Unavailable, not 200-399"},
		{"listed status", answerWith("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), func(h *balancer.Health) { h.Status = "200-204, 404" }, health.Passed, "answered 404 Not Found"},
		{"expected", answerWith(ok), expect, health.Passed, "answered 200 OK"},
		{"unexpected", answerWith("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbusy"), expect, health.Failed, `answered 200 OK, without the expected "ready"`},
		{"half-open", stuck, nil, health.Failed, "connected, but no data arrived within 300ms"},
		{"slow from the first byte", func(c net.Conn) { answerWith("HT")(c); stuck(c) }, nil, health.Failed, "the answer was not complete within 300ms: only 2 bytes"},
		{"slow headers", drip("HTTP/1.1 200 OK\r\nX: "), nil, health.Failed, "the answer was not complete within 300ms: only "},
		{"slow body", drip("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"), nil, health.Failed, "answered 200 OK, but the body was not complete within 300ms: only "},
		{"hangs up", answerWith(""), nil, health.Failed, "closed the connection without sending data"},
		{"truncated after a byte", answerWith("H"), nil, health.Failed, "the answer is truncated: the connection was closed after 1 byte"},
		{"truncated headers", answerWith("HTTP/1.1 200 OK\r\nConte"), nil, health.Failed, "the answer is truncated: the connection was closed after 22 bytes"},
		{"truncated body", answerWith("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nready"), nil, health.Failed, "answered 200 OK, but the body is truncated: the connection was closed after 5 bytes"},
		{"truncated body in chunks", answerWith("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nready\r\n"), nil, health.Failed, "answered 200 OK, but the body is truncated: the connection was closed after 5 bytes"},
		{"endless headers", endless("HTTP/1.1 200 OK\r\n", "X: y\r\n"), nil, health.Failed, "the answer's headers are longer than 64 KiB"},
		{"endless body", endless("HTTP/1.1 200 OK\r\n\r\n", "more "), nil, health.Passed, "answered 200 OK with a body of 64 KiB or more"},
		{"endless body, expected text", endless("HTTP/1.1 200 OK\r\n\r\nready", "more "), expect, health.Passed, "answered 200 OK with a body of 64 KiB or more"},
		{"endless body, unexpected", endless("HTTP/1.1 200 OK\r\n\r\n", "more "), expect, health.Failed, `the first 64 KiB of the answer do not contain the expected "ready"`},
		{"endless tiny chunks", endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n"), func(h *balancer.Health) { expect(h); h.Timeout = 5 * time.Second }, health.Failed, `the first 64 KiB of the answer do not contain the expected "ready"`},
		{"reset after the body", answersUnread("HTTP/1.0 200 OK\r\n\r\nready"), nil, health.Passed, "answered 200 OK"},
		{"reset after the body, expected", answersUnread("HTTP/1.0 200 OK\r\n\r\nready"), expect, health.Passed, "answered 200 OK"},
		{"reset after the body, unexpected", answersUnread("HTTP/1.0 200 OK\r\n\r\nbusy"), expect, health.Failed, `answered 200 OK, without the expected "ready"`},
		{"reset after a wrong status", answersUnread("HTTP/1.0 503 Service Unavailable\r\n\r\n"), nil, health.Failed, "answered 503 Service Unavailable, not 200-399"},
		{"reset after a body with a length", answersUnread(ok), expect, health.Passed, "answered 200 OK"},
		{"reset after the last chunk", answersUnread("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nready\r\n0\r\n\r\n"), expect, health.Passed, "answered 200 OK"},
		{"reset after keep-alive", answersUnread("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nready"), nil, health.Passed, "answered 200 OK"},
		{"reset in a body with a length", answersUnread("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nready"), nil, health.Failed, "answered 200 OK, but the body ended after 5 bytes"},
		{"reset before the last chunk", answersUnread("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nready\r\n"), nil, health.Failed, "answered 200 OK, but the body ended after 5 bytes"},
		{"reset in the headers", answersUnread("HTTP/1.0 200 OK\r\nConte"), nil, health.Failed, "connection reset after 22 bytes"},
		{"not HTTP", answerWith("SSH-2.0-OpenSSH_9.2\r\n"), nil, health.Failed, `answered "SSH-2.0-OpenSSH_9.2\r\n", which is not HTTP`},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, define(balancer.HTTPHealth, c.change), serve(t, c.handle), c.want, c.text)
		})
	}
	t.Run("refused", func(t *testing.T) {
		check(t, define(balancer.HTTPHealth, nil), closedPort(t), health.Failed, "connection refused")
	})
}

// TestRequestText receives an HTTP check's request. The request must match the settings in the
// check's definition.
func TestRequestText(t *testing.T) {
	quiet(t)
	got := make(chan string, 10) // large enough for repeated checks, which a busy machine may need
	at := serve(t, func(c net.Conn) {
		buf := make([]byte, 4096)
		n, _ := c.Read(buf)
		got <- string(buf[:n])
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	})
	check(t, define(balancer.HTTPHealth, func(h *balancer.Health) {
		h.Path, h.Method, h.Host = "/a%2Fb?c=d%20e", "HEAD", "shop.example"
		h.Headers = map[string]string{"X-Probe": "yes", "user-agent": "mine"}
	}), at, health.Passed, "answered 200 OK")
	want := "HEAD /a%2Fb?c=d%20e HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: mine\r\nConnection: close\r\nAccept: */*\r\nX-Probe: yes\r\n\r\n"
	if sent := <-got; sent != want {
		t.Errorf("HTTP request =\n%q, want\n%q", sent, want)
	}
}

func TestHTTPS(t *testing.T) {
	quiet(t)
	ca := newAuthority(t)
	good := ca.issue("shop.example", -time.Hour, time.Hour)
	config := func(c tls.Certificate) *tls.Config { return &tls.Config{Certificates: []tls.Certificate{c}} }
	mutual := &tls.Config{Certificates: []tls.Certificate{good}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool()}
	ca.issue("client", -time.Hour, time.Hour)
	named := func(h *balancer.Health) { h.Host, h.CAFile = "shop.example", ca.file("ca.pem") }
	fifo, large := ca.file("fifo"), ca.file("large.pem")
	err := errors.Join(makeFIFO(fifo), os.WriteFile(large, make([]byte, 1<<20+1), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		handle func(net.Conn)
		change func(*balancer.Health)
		want   health.Outcome
		text   string
	}{
		{"ok", overTLS(config(good), answerWith(ok)), named, health.Passed, "answered 200 OK"},
		{"port in host", overTLS(config(good), answerWith(ok)), func(h *balancer.Health) { named(h); h.Host += ":8443" }, health.Passed, "answered 200 OK"},
		{"wrong status", overTLS(config(good), answerWith("HTTP/1.1 500 Oops\r\n\r\n")), named, health.Failed, "answered 500 Internal Server Error, not 200-399"},
		{"expired", overTLS(config(ca.issue("shop.example", -2*time.Hour, -time.Hour)), answerWith(ok)), named, health.Failed, "certificate expired on 20"},
		{"not yet valid", overTLS(config(ca.issue("shop.example", time.Hour, 2*time.Hour)), answerWith(ok)), named, health.Failed, "certificate is not valid before 20"},
		{"wrong name", overTLS(config(good), answerWith(ok)), func(h *balancer.Health) { named(h); h.Host = "other.example" }, health.Failed, "certificate is for shop.example, not for other.example"},
		{"no name", overTLS(config(good), answerWith(ok)), func(h *balancer.Health) { named(h); h.Host = "" }, health.Failed, "certificate is for shop.example, not for 127.0.0.1"},
		{"unknown authority", overTLS(config(good), answerWith(ok)), func(h *balancer.Health) { h.Host, h.Timeout = "shop.example", wait.Patience }, health.Failed, "certificate is from an authority that is not trusted here"},
		{"not verified", overTLS(config(good), answerWith(ok)), func(h *balancer.Health) { h.Verify = false }, health.Passed, "answered 200 OK"},
		{"client certificate", overTLS(mutual, answerWith(ok)), func(h *balancer.Health) {
			named(h)
			h.CertFile, h.KeyFile = ca.file("client.pem"), ca.file("client.key")
		}, health.Passed, "answered 200 OK"},
		{"client certificate missing", overTLS(mutual, answerWith(ok)), named, health.Failed, "refused TLS: "},
		{"not TLS", answerWith(ok), named, health.Failed, "connected, but the TLS handshake did not finish within 300ms"},
		{"not TLS, with a greeting", func(c net.Conn) { _, _ = io.WriteString(c, "220 mail ready\r\n"); stuck(c) }, named, health.Failed, `answered "220 m", which is not TLS`},
		{"half-open", stuck, named, health.Failed, "connected, but the TLS handshake did not finish within 300ms"},
		{"hangs up", func(net.Conn) {}, named, health.Failed, "closed the connection during the TLS handshake"},
		{"truncated", overTLS(config(good), answerWith("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nready")), named, health.Failed, "answered 200 OK, but the body is truncated"},
		{"missing file", overTLS(config(good), answerWith(ok)), func(h *balancer.Health) { named(h); h.CAFile, h.Timeout = "/nowhere/ca.pem", wait.Patience }, health.NotRun, "not run: checking a certificate file: stat /nowhere/ca.pem"},
		{"file without certificate", overTLS(config(good), answerWith(ok)), func(h *balancer.Health) { named(h); h.CAFile, h.Timeout = "/proc/version", wait.Patience }, health.NotRun, "not run: reading ca_file: /proc/version contains no certificate"},
		{"device file", overTLS(config(good), answerWith(ok)), func(h *balancer.Health) { named(h); h.CAFile, h.Timeout = "/dev/zero", wait.Patience }, health.NotRun, "not run: reading ca_file: /dev/zero is not a regular file"},
		{"FIFO without writer", overTLS(config(good), answerWith(ok)), func(h *balancer.Health) { named(h); h.CAFile, h.Timeout = fifo, wait.Patience }, health.NotRun, "not run: reading ca_file: " + fifo + " is not a regular file"},
		{"too large", overTLS(config(good), answerWith(ok)), func(h *balancer.Health) {
			named(h)
			h.CertFile, h.KeyFile, h.Timeout = ca.file("ca.pem"), large, wait.Patience
		}, health.NotRun, "not run: reading cert_file and key_file: " + large + " has more than 1048576 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, define(balancer.HTTPSHealth, c.change), serve(t, c.handle), c.want, c.text)
		})
	}
}

// TestForeignTextPrintable checks targets that send control characters, characters that reorder
// text, or long answers. The result must be printable and short, and the transcript must be
// printable.
func TestForeignTextPrintable(t *testing.T) {
	quiet(t)
	const evil = "\x1b[31m\u202e\u009b2J\u200b"
	ca := newAuthority(t)
	named := overTLS(&tls.Config{Certificates: []tls.Certificate{ca.issue("x\x1b[31m"+strings.Repeat("x", 100), -time.Hour, time.Hour)}}, answerWith(ok))
	for _, c := range []struct {
		kind   balancer.HealthType
		change func(*balancer.Health)
		handle func(net.Conn)
	}{
		{balancer.TCPHealth, func(h *balancer.Health) { h.Expect = "ready" }, func(c net.Conn) { _, _ = io.WriteString(c, evil+strings.Repeat("x", 9000)) }},
		{balancer.HTTPHealth, nil, answerWith(evil + strings.Repeat("x", 9000) + "\r\n\r\n")},
		{balancer.HTTPHealth, nil, answerWith("HTTP/1.1 999 " + evil + "\r\n\r\n")},
		{balancer.HTTPSHealth, func(h *balancer.Health) { h.Host, h.CAFile = "shop.example", ca.file("ca.pem") }, named},
	} {
		h := define(c.kind, c.change)
		h.Timeout = wait.Patience
		got, transcript := newProbe(h, balancer.TCP).Exchange(t.Context(), serve(t, c.handle))
		if got.Outcome != health.Failed || len(got.Text) > 500 || strings.ContainsFunc(got.Text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%s: result = %s %q, want a failure with at most 500 printable bytes", c.kind, got.Outcome, got.Text)
		}
		if strings.ContainsFunc(transcript, func(r rune) bool { return !unicode.IsPrint(r) && !strings.ContainsRune("\n\t", r) }) {
			t.Errorf("%s: transcript = %q, want printable characters only", c.kind, transcript)
		}
	}
}

// TestChangedCertificateFiles changes the CA file between checks. Each check must use the new
// content, even after a check with broken content.
func TestChangedCertificateFiles(t *testing.T) {
	quiet(t)
	ca, other := newAuthority(t), newAuthority(t)
	at := serve(t, overTLS(&tls.Config{Certificates: []tls.Certificate{ca.issue("shop.example", -time.Hour, time.Hour)}}, answerWith(ok)))
	file := t.TempDir() + "/ca.pem"
	h := define(balancer.HTTPSHealth, func(h *balancer.Health) {
		h.Host, h.CAFile, h.Timeout = "shop.example", file, wait.Patience
	})
	p := newProbe(h, balancer.TCP)
	for i, c := range []struct {
		from string
		want health.Outcome
	}{{ca.file("ca.pem"), health.Passed}, {other.file("ca.pem"), health.Failed}, {"", health.NotRun}, {ca.file("ca.pem"), health.Passed}} {
		text := []byte("garbage")
		if c.from != "" {
			var err error
			if text, err = os.ReadFile(c.from); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(file, append(text, strings.Repeat("\n", i)...), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := patient(t, p, at); got.Outcome != c.want {
			t.Errorf("version %d of the file: result = %s: %s, want %s", i, got.Outcome, got.Text, c.want)
		}
	}
}

// TestSystemAuthorityChange adds an authority to the system's certificate store, and then replaces
// it, both in the store's file and in its directory. Later checks must use the store's new content
// without a restart.
func TestSystemAuthorityChange(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the store is a set of files on Linux only")
	}
	quiet(t)
	ca, other := newAuthority(t), newAuthority(t)
	file, folder := t.TempDir()+"/bundle.crt", t.TempDir()
	t.Setenv("SSL_CERT_FILE", file)
	t.Setenv("SSL_CERT_DIR", folder)
	at := serve(t, overTLS(&tls.Config{Certificates: []tls.Certificate{ca.issue("shop.example", -time.Hour, time.Hour)}}, answerWith(ok)))
	subject := health.Subject{At: at, Proto: balancer.TCP, Health: define(balancer.HTTPSHealth, func(h *balancer.Health) {
		h.Host, h.Timeout = "shop.example", wait.Patience
	})}
	r := probe.NewRunner(probe.Options{})
	for _, c := range []struct {
		name, from, to string
		want           health.Outcome
	}{
		{"other authority", other.file("ca.pem"), file, health.Failed},
		{"added to the file", ca.file("ca.pem"), file, health.Passed},
		{"replaced in the file", other.file("ca.pem"), file, health.Failed},
		{"a large file", ca.file("ca.pem"), file, health.Passed},
		{"replaced in the large file", other.file("ca.pem"), file, health.Failed},
		{"added to the folder", ca.file("ca.pem"), folder + "/ca.pem", health.Passed},
		{"replaced in the folder", other.file("ca.pem"), folder + "/ca.pem", health.Failed},
	} {
		text, err := os.ReadFile(c.from)
		if err == nil {
			text = append(text, strings.Repeat("\n", len(c.name))...) // changes the file's size, because file timestamps are imprecise
			if strings.Contains(c.name, "large") {
				text = append([]byte(strings.Repeat("# a comment\n", 100_000)), text...) // 1.2 MB
			}
			err = os.WriteFile(c.to, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		wait.For(t, time.Minute, c.name, func() bool {
			all, err := r.Exchange(t.Context(), subject)
			if err != nil {
				t.Fatal(err)
			}
			return all[0].Outcome == c.want
		})
	}
}

func TestUDP(t *testing.T) {
	quiet(t)
	text := func(answer string) func([]byte) []byte { return func([]byte) []byte { return []byte(answer) } }
	silent := func([]byte) []byte { return nil }
	send := func(h *balancer.Health) { h.Send = "ping" }
	expect := func(h *balancer.Health) { h.Send, h.Expect = "ping", "pong" }
	for _, c := range []struct {
		name   string
		answer func([]byte) []byte
		change func(*balancer.Health)
		want   health.Outcome
		text   string
	}{
		{"answer", text("anything"), send, health.Passed, "answered 8 bytes"},
		{"expected", text("a pong"), expect, health.Passed, "answered as expected"},
		{"unexpected", text("no"), expect, health.Failed, `answered "no", without the expected "pong"`},
		{"silence", silent, send, health.Passed, "sent; no ICMP error arrived within 300ms"},
		{"silence instead of an answer", silent, expect, health.Failed, "no answer within 300ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, define(balancer.UDPHealth, c.change), serveUDP(t, c.answer), c.want, c.text)
		})
	}
	for name, change := range map[string]func(*balancer.Health){"unreachable": send, "unreachable, answer expected": expect} {
		t.Run(name, func(t *testing.T) {
			check(t, define(balancer.UDPHealth, change), closedPort(t), health.Failed, "port unreachable: the host reports that nothing listens there")
		})
	}
}

// TestCanceledCheckBlamesNoTarget cancels a check before the target answers. The check must count
// as not run.
func TestCanceledCheckBlamesNoTarget(t *testing.T) {
	quiet(t)
	ctx, cancel := contextThatEnds(t, 50*time.Millisecond)
	defer cancel()
	h := define(balancer.HTTPHealth, func(h *balancer.Health) { h.Timeout = time.Minute })
	if got := newProbe(h, balancer.TCP).Check(ctx, serve(t, stuck)); got.Outcome != health.NotRun {
		t.Errorf("result = %s: %s, want not run", got.Outcome, got.Text)
	}
}
