# make demo   a four-node cluster on this machine: real etcd, real BGP, real kernel routes, pings between pods
# make test   everything: format, lints, documentation, unit, property, end-to-end, and IPIP in a kernel that has it
# make bench  the same BGP work for caracal, BIRD 2, BIRD 1.6, FRR and GoBGP, interleaved; tables go to docs/performance.md
#
# All install the Debian packages they miss (as root, or through sudo).

SHELL := /bin/bash
CARGO ?= cargo

# To build (protobuf compiler for the etcd API) and to run the lab.
BUILD_PACKAGES := protobuf-compiler libprotobuf-dev
LAB_PACKAGES := etcd-server etcd-client iproute2 iputils-ping nftables util-linux procps
# Real peers, packet captures, certificates, and the kernel with IPIP.
TEST_PACKAGES := bird2 bgpdump gobgpd tcpdump iptables containernetworking-plugins openssl user-mode-linux kmod valgrind
# Container runtimes, and a root file system for their containers.
TEST_PACKAGES += podman containerd runc crun busybox-static
# promtool, and a Prometheus that scrapes a node.
TEST_PACKAGES += prometheus

# The scenarios in tests/tests that `make e2e` runs in namespaces on this kernel, one after the other.
E2E := \
  health \
  outage \
  migrate \
  doctor \
  container \
  cluster \
  cli \
  ipv6 \
  hitless \
  mode \
  interop \
  ipam \
  speaker \
  fib \
  ipam_chaos \
  ipam_pools \
  topology \
  runtimes \
  ipam_tools \
  announcement \
  failures \
  audit \
  trace \
  drain \
  services \
  templates \
  paths \
  wire \
  settings \
  next_hops \

.PHONY: demo test lint unit e2e ipip instructions instructions-record bench release clean packages-build packages-demo packages-test

demo: packages-demo
	$(CARGO) build -p caracal
	target/debug/caracal lab demo topologies/examples/cross-subnet.yaml

test: packages-test lint unit instructions e2e ipip

# Formatting, lints, documentation.
lint: packages-build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

# Cores without their shells, then every crate with everything.
unit: packages-test
	$(CARGO) test --quiet -p caracal-bgp -p caracal-ipam -p caracal-agent --no-default-features
	$(CARGO) build -p caracal
	$(CARGO) test --no-fail-fast --workspace --exclude caracal-tests
	$(CARGO) test -p caracal-tests --test architecture --test fuzz --test churn --test deploy
	$(CARGO) test --manifest-path fuzz/differential/Cargo.toml --target-dir target/differential

# Clusters in network namespaces on this kernel.
e2e: packages-test
	$(CARGO) build -p caracal
	CARACAL_E2E_REQUIRED=1 $(CARGO) test --no-fail-fast -p caracal-tests $(E2E:%=--test %) -- --test-threads=1 --nocapture

# The scenarios that need a real tunl0, in a kernel that has one.
ipip: packages-test
	$(CARGO) build -p caracal
	$(CARGO) test -p caracal-tests --test ipip --no-run
	lab/with-ipip-kernel --check
	CARACAL_E2E_REQUIRED=1 $(CARGO) test -p caracal-tests --test ipip -- --test-threads=1 --nocapture

# What the hot paths cost, counted in instructions and compared with bench/instructions.txt.
instructions: packages-test
	$(CARGO) build --release -p caracal-bench
	target/release/caracal-bench instructions

# Makes the record anew; say why in the commit.
instructions-record: packages-test
	$(CARGO) build --release -p caracal-bench
	target/release/caracal-bench instructions --record

# Run it on a machine that has nothing else to do. FRR takes part when it is installed (package frr). Debian's packages
# of BIRD 1.6 and BIRD 2 exclude each other, so that the first is unpacked and not installed.
bench: packages-test target/bird1
	$(CARGO) build --release -p caracal-bench -p caracal
	target/release/caracal-bench run --write docs/performance.md
	target/release/caracal-bench install --write docs/performance.md
	target/release/caracal-bench latency --write docs/performance.md

target/bird1:
	mkdir -p $@ && cd $@ && apt-get download -q bird && dpkg -x bird_*.deb .

release: packages-build
	$(CARGO) build --release -p caracal

clean:
	$(CARGO) clean

packages-build packages-demo packages-test: packages-%:
	@case $* in \
	  build) wanted="$(BUILD_PACKAGES)" ;; \
	  demo) wanted="$(BUILD_PACKAGES) $(LAB_PACKAGES)" ;; \
	  test) wanted="$(BUILD_PACKAGES) $(LAB_PACKAGES) $(TEST_PACKAGES)" ;; \
	esac; \
	missing=; for p in $$wanted; do \
	  dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; \
	done; \
	[ -z "$$missing" ] && exit 0; \
	echo "installing:$$missing"; \
	sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
	if [ -n "$$sudo" ] && ! command -v sudo >/dev/null; then \
	  echo "not root and no sudo; as root: apt-get install --no-install-recommends$$missing" >&2; exit 1; fi; \
	$$sudo apt-get update -q && \
	$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing
