# The common tasks. "make" without a target lists them.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO      ?= go
# All targets and the tests that build programs use this setting, so they share compiled packages.
export GOFLAGS := -trimpath $(GOFLAGS)
VERSION ?= $(shell packaging/version 2>/dev/null || echo unknown)
# The version contains the commit if git knows it. In a tree without .git, or of another user, the build must not fail.
STAMP   := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo true || echo false)
REPORT  := CGO_ENABLED=0 $(GO) build -buildvcs=false -o build/report ./test/report && build/report
BUILD   := CGO_ENABLED=0 $(GO) build -buildvcs=$(STAMP) -ldflags "-X vipd/cmd/internal/version.Version=$(VERSION)"
# Pinned in its own file instead of go.mod, so that a linter's dependencies never become the programs' dependencies.
STATICCHECK := $(GO) tool -modfile=test/lint.mod staticcheck

PREFIX     ?= /usr/local
BINDIR     ?= $(PREFIX)/bin
SYSCONFDIR ?= /etc
UNITDIR    ?= $(PREFIX)/lib/systemd/system
LIBDIR     ?= $(PREFIX)/lib
DATADIR    ?= $(PREFIX)/share
DESTDIR    ?=

.PHONY: help build run demo demo-pair check test soak test-kernel test-ipvs test-windows fresh needs bench lint cover package package-test install uninstall clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/vipd, bin/vipctl, their manual pages in bin/man, and the examples' servers
	@mkdir -p bin
	$(BUILD) -o bin/ ./cmd/vipd ./cmd/vipctl ./examples/echo ./examples/demo
	@CGO_ENABLED=0 $(GO) run -buildvcs=false ./packaging/man -bin bin -o bin/man -version "$(VERSION)"

run: build ## run three servers behind a VIP on this machine, without root, until Ctrl-C
	@bin/demo run

demo: build ## run a guided demonstration: load, a dying server, a drain, a reload, a broken file
	@bin/demo tour

demo-pair: build ## run two gateways that share a VIP through VRRP: a planned move, a kill and a cut, in network namespaces (needs root)
	@examples/pair/demo

# The changes since the last commit that upstream also has or, without an upstream, since the last commit.
CHANGED = { git diff --name-only --diff-filter=d "$$(git merge-base HEAD '@{upstream}' 2>/dev/null || echo HEAD)"; \
	git ls-files --others --exclude-standard; } | { grep '\.go$$' || true; } | sort -u

check: ## lint the changed packages, and run the short tests: for each commit, about a minute, without root or network
	@files=$$($(CHANGED)); [ -z "$$files" ] || { \
		unformatted=$$(gofmt -l $$files); if [ -n "$$unformatted" ]; then echo "gofmt would change:"; echo "$$unformatted"; exit 1; fi; \
		packages=$$(dirname $$files | sort -u | sed 's,^,./,'); $(GO) vet $$packages && $(STATICCHECK) $$packages; }
	@$(GO) test -short -p=6 -timeout=20m ./balancer/... ./store/... ./dataplane/... ./cmd/... ./test/deps/... | { grep -v 'no test files' || true; }

test: needs ## run all tests under the race detector, and list skipped tests and tests that pass only when run alone
	@$(REPORT) -again -race -vet=off -timeout=60m ./...

soak: needs ## run the long versions of all tests, and each fuzz target for a minute (an hour; see docs/contributing.md)
	@for os in windows darwin; do GOOS=$$os CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/vipd ./cmd/vipctl; done
	@export VIPD_SOAK=1; $(REPORT) -race -count=1 -timeout=60m ./...
	@test/fuzz 60s

test-kernel: needs ## test only the packages whose tests need root and create real kernel objects
	@$(REPORT) -kernel -race -count=1 -timeout=20m

test-ipvs: needs ## run only the tests that need IPVS, in a guest if this kernel has no IPVS
	@$(REPORT) -ipvs -race -count=1 -timeout=20m

# Packages whose tests need neither Linux nor features that Wine 8 lacks (Unix sockets, deletion of temporary folders).
PORTABLE := ./balancer ./balancer/decode ./balancer/health ./balancer/health/quorum ./balancer/failover ./balancer/pick ./balancer/snap ./balancer/lib/sockerr \
	./store ./dataplane ./cmd/internal/convert ./cmd/internal/events

test-windows: ## test portable packages, and vipd as a Windows service, under Wine (apt-get install wine wine64 binutils-mingw-w64-x86-64)
	VIPD_SOAK=1 $(GO) test -count=1 ./test/windows
	GOOS=windows CGO_ENABLED=0 $(GO) test -short -count=1 -exec $(CURDIR)/test/windows/wine $(PORTABLE); code=$$?; test/windows/wine end; exit $$code

fresh: ## test run, check, package and install in a fresh Debian with only Go, git, make and certificates (as root, with mmdebstrap)
	test/fresh build/fresh

needs:
	@test/needs

bench: build ## run all benchmarks, and compare vipd with HAProxy, nginx, kube-proxy's rules and ipvsadm (minutes; on an idle machine)
	@test/needs bench
	$(GO) test -run '^$$' -bench . -benchmem -timeout 30m ./... | grep -v 'no test files'
	$(GO) run -buildvcs=false ./test/bench -vipd bin/vipd
	$(GO) run -buildvcs=false ./test/bench/kernel -plot docs/first-packet.svg
	$(GO) run -buildvcs=false ./test/bench/kernel -ipvs

# The commits that upstream lacks; none if there is no upstream.
NEW = "$$(git merge-base HEAD '@{upstream}' 2>/dev/null || echo HEAD)..HEAD"

# vet and staticcheck compile with the race detector, so "make lint test" reuses the result. The programs exit soon, so garbage
# collections are rarer.
lint: ## check formatting, vet, staticcheck, comments, subjects of new commits, and whether the programs compile for Windows and macOS
	@long=$$(git log --format=%s $(NEW) 2>/dev/null | awk 'length > 72'); if [ -n "$$long" ]; then echo "subjects over 72 columns:"; echo "$$long"; exit 1; fi
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "gofmt would change:"; echo "$$unformatted"; exit 1; fi
	GOGC=400 $(GO) vet -race ./...
	$(GO) test ./test/style
	CGO_ENABLED=0 $(GO) build -modfile=test/lint.mod -o build/staticcheck honnef.co/go/tools/cmd/staticcheck
	GOGC=400 GOFLAGS="$(GOFLAGS) -race" build/staticcheck ./...
	CGO_ENABLED=0 $(GO) run -buildvcs=false ./test/typecheck windows darwin -- ./cmd/vipd ./cmd/vipctl

cover: ## print each package's statement coverage by all tests
	@mkdir -p build
	@$(GO) test -coverpkg ./... -coverprofile build/cover.out ./... >build/cover.log || { cat build/cover.log; exit 1; }
	@awk -f test/cover.awk build/cover.out

package: ## build .deb and .rpm packages for amd64 and arm64 in build/packages; MAINTAINER="Name <mail>" sets their maintainer
	packaging/build build/packages amd64 arm64

package-test: needs ## install, upgrade, downgrade, remove and purge the packages of two versions in namespaces (as root; minutes)
	@rm -rf build/package-test
	VERSION=v0.0.1 packaging/build build/package-test/old amd64
	VERSION=v0.0.2 packaging/build build/package-test/new amd64 arm64
	VERSION=v0.0.2 packaging/build build/package-test/again amd64 arm64
	VIPD_PACKAGES=$(CURDIR)/build/package-test $(GO) test -count=1 -run "Packages|RPM" ./packaging/... ./test/systemd

install: ## (after build) install programs, units, module options, completions, manual pages, and a default config if none exists
	@test -x bin/vipd || { echo 'run "make build" first'; exit 1; } # build is not a dependency, because Go might be missing under sudo
	install -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(UNITDIR) $(DESTDIR)$(SYSCONFDIR)/vipd
	install -m 0755 bin/vipd bin/vipctl $(DESTDIR)$(BINDIR)/
	sed 's,/usr/local/bin/,$(BINDIR)/,; s,/etc/vipd/,$(SYSCONFDIR)/vipd/,' systemd/vipd.service >bin/vipd.service
	install -m 0644 bin/vipd.service $(DESTDIR)$(UNITDIR)/vipd.service
	sed 's,/usr/local/bin/,$(BINDIR)/,; s,/etc/vipd/,$(SYSCONFDIR)/vipd/,' systemd/vipd-owner.service >bin/vipd-owner.service
	install -m 0644 bin/vipd-owner.service $(DESTDIR)$(UNITDIR)/vipd-owner.service
	for d in modprobe.d modules-load.d sysctl.d sysusers.d tmpfiles.d; do install -D -m 0644 systemd/$$d/vipd.conf $(DESTDIR)$(LIBDIR)/$$d/vipd.conf; done
	if [ ! -e $(DESTDIR)$(SYSCONFDIR)/vipd/vipd.toml ]; then install -m 0644 systemd/vipd.toml $(DESTDIR)$(SYSCONFDIR)/vipd/vipd.toml; fi
	bin/vipctl completion bash | install -D -m 0644 /dev/stdin $(DESTDIR)$(DATADIR)/bash-completion/completions/vipctl
	bin/vipctl completion zsh  | install -D -m 0644 /dev/stdin $(DESTDIR)$(DATADIR)/zsh/site-functions/_vipctl
	bin/vipctl completion fish | install -D -m 0644 /dev/stdin $(DESTDIR)$(DATADIR)/fish/vendor_completions.d/vipctl.fish
	install -D -m 0644 packaging/vipd.schema.json $(DESTDIR)$(DATADIR)/vipd/vipd.schema.json
	for page in $(notdir $(wildcard bin/man/*)); do install -D -m 0644 bin/man/$$page $(DESTDIR)$(DATADIR)/man/man$${page##*.}/$$page; done

uninstall: ## remove what install has installed, except the config; first stop vipd, and run "vipctl cleanup"
	rm -f $(DESTDIR)$(BINDIR)/vipd $(DESTDIR)$(BINDIR)/vipctl $(DESTDIR)$(UNITDIR)/vipd.service $(DESTDIR)$(UNITDIR)/vipd-owner.service
	for d in modprobe.d modules-load.d sysctl.d sysusers.d tmpfiles.d; do rm -f $(DESTDIR)$(LIBDIR)/$$d/vipd.conf; done
	rm -f $(DESTDIR)$(DATADIR)/bash-completion/completions/vipctl $(DESTDIR)$(DATADIR)/zsh/site-functions/_vipctl
	rm -f $(DESTDIR)$(DATADIR)/fish/vendor_completions.d/vipctl.fish $(DESTDIR)$(DATADIR)/man/man1/{vipctl,vipctl-*}.1
	rm -f $(DESTDIR)$(DATADIR)/vipd/vipd.schema.json $(DESTDIR)$(DATADIR)/man/man5/vipd.toml.5 $(DESTDIR)$(DATADIR)/man/man8/vipd.8

clean: ## remove everything that the other targets have built
	rm -rf bin build
