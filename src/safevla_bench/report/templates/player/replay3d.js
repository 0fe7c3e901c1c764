// The player of episodes in three dimensions. Without it, or without WebGL, the page says everything in text and plots.
// It shows recorded states and nothing between them; a record's data is unpacked when the reader opens it.
(() => {
  "use strict";
  const figures = Array.from(document.querySelectorAll("figure.replay3d[data-episode]"));
  if (!figures.length || typeof DecompressionStream === "undefined") return;
  const POSITION_M = 1e-4, QUATERNION = 1 / 32767, FORCE_N = 0.1, NORMAL = 0.01;
  const ARROW_M_PER_N = 0.001, ARROW_LEAST_M = 0.02, ARROW_MOST_M = 0.4;
  const CUT_M = 1.6, SPEEDS = [0.1, 0.25, 0.5, 1];
  const BROKEN = 0xd55e00, NEAR = 0xe6b800, CONTACT = 0x0099cc;
  let open = null;

  // Packed integers: see pack_integers in frames/replay3d.py.
  async function unpack(text, rows, columns) {
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    if (!(rows * columns <= 5e7)) throw new Error("its file is damaged");
    const count = rows * columns, out = new Int32Array(count), planes = new Uint8Array(4 * count);
    const reader = new Response(packed).body.pipeThrough(new DecompressionStream("deflate")).getReader();
    let filled = 0;
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      if (filled + part.value.length > planes.length) throw new Error("its file is damaged"); // and may never end
      planes.set(part.value, filled);
      filled += part.value.length;
    }
    if (filled < planes.length) throw new Error("its file is damaged");
    for (let column = 0; column < columns; column++) {
      for (let row = 0, sum = 0; row < rows; row++) {
        const at = column * rows + row;
        const folded = planes[at] + planes[count + at] * 256 + planes[2 * count + at] * 65536 + planes[3 * count + at] * 16777216;
        sum += folded % 2 ? -(folded + 1) / 2 : folded / 2;
        out[row * columns + column] = sum;
      }
    }
    return out;
  }

  const readJson = (id) => JSON.parse(document.getElementById(id).textContent);

  async function unpackMesh(mesh) {
    const [corners, triangles] = await Promise.all([unpack(mesh.corners[1], mesh.corners[0], 3), unpack(mesh.triangles[1], mesh.triangles[0], 3)]);
    const colors = mesh.colors ? await unpack(mesh.colors[1], mesh.colors[0], 3) : null;
    for (let k = 0; k < triangles.length; k += 3) {
      triangles[k + 1] += triangles[k];
      triangles[k + 2] += triangles[k];
    }
    const smooth = new THREE.BufferGeometry();
    smooth.setAttribute("position", new THREE.BufferAttribute(Float32Array.from(corners, (value) => value * mesh.step_m), 3));
    if (colors) smooth.setAttribute("color", new THREE.BufferAttribute(Float32Array.from(colors, (value) => value / 255), 3));
    smooth.setIndex(new THREE.BufferAttribute(Uint32Array.from(triangles), 1));
    const surface = THREE.toCreasedNormals(smooth, 0.7);
    smooth.computeVertexNormals();
    return { surface, smooth };
  }

  function primitive(shape) {
    const [x, y, z] = shape.size;
    const round = (geometry) => geometry.rotateX(Math.PI / 2); // three.js has its axis along y, MuJoCo along z
    switch (shape.kind) {
      case "plane": return new THREE.PlaneGeometry(2 * x, 2 * y);
      case "box": return new THREE.BoxGeometry(2 * x, 2 * y, 2 * z);
      case "sphere": return new THREE.SphereGeometry(x, 24, 16);
      case "ellipsoid": return new THREE.SphereGeometry(1, 24, 16).scale(x, y, z);
      case "capsule": return round(new THREE.CapsuleGeometry(x, 2 * y, 8, 20));
      default: return round(new THREE.CylinderGeometry(x, x, 2 * y, 32));
    }
  }

  // The outline is the shape again, grown in the picture and seen from inside.
  const outlineMaterial = (fromCenter) => new THREE.ShaderMaterial({
    side: THREE.BackSide,
    uniforms: { color: { value: new THREE.Color(NEAR) } },
    vertexShader: `void main() {
      vec4 place = modelViewMatrix * vec4(position, 1.0);
      vec3 away = normalize(normalMatrix * ${fromCenter ? "position" : "normal"});
      place.xyz -= away * place.z * 0.005;
      place.xyz *= 1.004;
      gl_Position = projectionMatrix * place;
    }`,
    fragmentShader: "uniform vec3 color; void main() { gl_FragColor = vec4(color, 1.0); }",
  });

  function addShape(group, shape, meshes) {
    const mesh = shape.mesh === undefined ? null : meshes.get(shape.mesh);
    const surface = mesh ? mesh.surface : primitive(shape);
    const [r, g, b, a] = shape.rgba;
    const material = new THREE.MeshLambertMaterial({
      color: new THREE.Color(r, g, b), vertexColors: Boolean(surface.getAttribute("color")),
      side: mesh ? THREE.DoubleSide : THREE.FrontSide, transparent: a < 1, opacity: a,
    });
    const shown = new THREE.Mesh(surface, material);
    const [w, x, y, z] = shape.quat;
    shown.position.set(...shape.pos);
    shown.quaternion.set(x, y, z, w).normalize();
    group.add(shown);
    if (shape.kind === "plane") return;
    const outline = new THREE.Mesh(mesh ? mesh.smooth : surface, outlineMaterial(!mesh));
    outline.position.copy(shown.position);
    outline.quaternion.copy(shown.quaternion);
    outline.visible = false;
    group.add(outline);
    group.userData.outlines.push(outline);
    group.userData.materials.push(material);
  }

  function makeBox({ center, size }) {
    const material = new THREE.MeshBasicMaterial({ color: BROKEN, transparent: true, opacity: 0.22, depthWrite: false, side: THREE.DoubleSide });
    const box = new THREE.Mesh(new THREE.BoxGeometry(...size), material);
    box.position.set(...center);
    box.renderOrder = 4;
    return box;
  }

  function makeArrow() {
    const material = new THREE.MeshBasicMaterial({ transparent: true, depthTest: false });
    const arrow = new THREE.Group(); // of length 1 along y, its tip at the origin
    const shaft = new THREE.Mesh(new THREE.CylinderGeometry(1, 1, 1, 10).translate(0, -0.5, 0), material);
    const head = new THREE.Mesh(new THREE.ConeGeometry(1, 1, 14).translate(0, -0.5, 0), material);
    arrow.add(shaft, head);
    arrow.renderOrder = shaft.renderOrder = head.renderOrder = 5;
    arrow.userData = { shaft, head, material };
    return arrow;
  }

  // Everything of one episode, unpacked
  async function load(data) {
    const stored = readJson("replay3d-meshes");
    const wanted = [...new Set(data.shapes.map((shape) => shape.mesh).filter((name) => name !== undefined))];
    const meshes = new Map(await Promise.all(wanted.map(async (name) => [name, await unpackMesh(stored[name])])));
    const [still, motion, contacts] = await Promise.all([
      unpack(data.still, data.parts.length, 7),
      unpack(data.motion, data.records, 7 * data.moving.length),
      unpack(data.contacts.rows, data.contacts.count, 10),
    ]);
    return { meshes, still, motion, contacts };
  }

  class Player {
    constructor(figure, data, content) {
      Object.assign(this, { figure, data, content, record: 0, speed: 1, playing: false, clause: data.clauses[0] || null });
      this.last = Math.max(data.records - 1, 0);
      this.parts = data.parts.map((name) => {
        const group = new THREE.Group();
        group.name = name;
        group.userData = { outlines: [], materials: [] };
        return group;
      });
      this.buildScene();
      this.buildControls();
      this.placeStill();
      this.focus();
      this.resize();
      this.seek(0);
    }

    // The scene

    buildScene() {
      THREE.ColorManagement.enabled = false; // colors are those of the simulator, which shows them as they are
      this.canvas = document.createElement("canvas");
      this.renderer = new THREE.WebGLRenderer({ canvas: this.canvas, antialias: true });
      this.renderer.outputColorSpace = THREE.LinearSRGBColorSpace;
      this.scene = new THREE.Scene();
      this.camera = new THREE.PerspectiveCamera(this.data.view.fovy_deg, 1.6, 0.01, 60);
      this.camera.up.set(0, 0, 1);
      const headlight = new THREE.DirectionalLight(0xffffff, 0.3 * Math.PI);
      const sun = new THREE.DirectionalLight(0xffffff, 0.34 * Math.PI);
      const sky = new THREE.HemisphereLight(0xffffff, 0x8a8a8a, 0.34 * Math.PI);
      sun.position.set(1, -0.6, 3);
      sky.position.set(0, 0, 1);
      headlight.position.set(0, 0, 1);
      this.camera.add(headlight, headlight.target);
      this.scene.add(this.camera, sun, sky, ...this.parts);
      this.arrows = [];
      this.boxes = [];
      for (const shape of this.data.shapes) addShape(this.parts[shape.part], shape, this.content.meshes);
      this.paint();
    }

    paint() {
      this.renderer.setClearColor(getComputedStyle(this.figure).getPropertyValue("--stage").trim() || "#888888");
      this.redraw();
    }

    placeStill() {
      this.parts.forEach((group, k) => this.place(group, this.content.still, 7 * k));
    }

    place(group, numbers, at) {
      group.position.set(numbers[at], numbers[at + 1], numbers[at + 2]).multiplyScalar(POSITION_M);
      const [w, x, y, z] = numbers.subarray(at + 3, at + 7);
      group.quaternion.set(x * QUATERNION, y * QUATERNION, z * QUATERNION, w * QUATERNION).normalize();
    }

    // The simulator's own camera; what it turns about is as far away as the things that move.
    focus() {
      const { pos_m, quat_wxyz: [w, x, y, z] } = this.data.view;
      this.camera.position.set(...pos_m);
      this.camera.quaternion.set(x, y, z, w);
      const forward = new THREE.Vector3(0, 0, -1).applyQuaternion(this.camera.quaternion);
      const middle = new THREE.Vector3();
      for (const k of this.data.moving) middle.addScaledVector(this.parts[k].position, 1 / this.data.moving.length);
      const depth = Math.max(0.3, middle.sub(this.camera.position).dot(forward));
      this.cut = Math.max(CUT_M, depth);
      this.controls = new THREE.OrbitControls(this.camera, this.canvas);
      this.controls.target.copy(this.camera.position).addScaledVector(forward, depth);
      this.controls.maxDistance = 12;
      this.stage.addEventListener("focus", () => { this.controls.enableZoom = true; });
      this.stage.addEventListener("blur", () => { this.controls.enableZoom = false; }); // the wheel scrolls the page then
      this.controls.addEventListener("change", () => this.redraw());
      this.controls.update();
      this.controls.saveState();
    }

    closeUp() {
      const chosen = this.shownParts(this.involved());
      if (!chosen.length) return;
      const middle = new THREE.Vector3();
      for (const k of chosen) middle.addScaledVector(this.parts[k].position, 1 / chosen.length);
      const contact = this.contactsNow().find((one) => this.isOffending(one));
      if (contact) middle.copy(contact.point);
      const back = this.camera.position.clone().sub(this.controls.target).setLength(0.6);
      this.controls.target.copy(middle);
      this.camera.position.copy(middle).add(back);
      this.controls.update();
    }

    turn(across, up) {
      const arm = this.camera.position.clone().sub(this.controls.target), size = arm.length();
      const azimuth = Math.atan2(arm.y, arm.x) + across;
      const height = Math.min(Math.max(Math.asin(arm.z / size) + up, -1.5), 1.5);
      arm.set(Math.cos(height) * Math.cos(azimuth), Math.cos(height) * Math.sin(azimuth), Math.sin(height)).multiplyScalar(size);
      this.camera.position.copy(this.controls.target).add(arm);
      this.controls.update();
    }

    zoom(factor) {
      this.camera.position.sub(this.controls.target).multiplyScalar(factor).add(this.controls.target);
      this.controls.update();
    }

    // What is wrong now

    isBroken() {
      return Boolean(this.clause) && this.clause.spans.some(([first, last]) => first <= this.record && this.record <= last);
    }

    involved() {
      if (!this.clause) return [];
      return this.record === this.clause.first ? this.clause.bodies_first : this.clause.bodies;
    }

    offenders() {
      return this.clause && this.clause.violated ? this.involved() : [];
    }

    shownParts(names) {
      return names.flatMap((name) => {
        const joint = /^joint (\d+)$/.exec(name);
        const body = joint ? this.data.arm[joint[1] - 1] : name;
        const own = this.data.parts.flatMap((part, k) => (part === body ? [k] : []));
        return own.length ? own : this.data.stand_ins[body] || [];
      });
    }

    contactsNow() {
      const rows = this.content.contacts, found = [];
      for (let at = 0; at < rows.length; at += 10) {
        if (rows[at] !== this.record) continue;
        const [a, b] = this.data.contacts.pairs[rows[at + 1]];
        const point = new THREE.Vector3(rows[at + 4], rows[at + 5], rows[at + 6]).multiplyScalar(POSITION_M);
        const normal = new THREE.Vector3(rows[at + 7], rows[at + 8], rows[at + 9]).multiplyScalar(NORMAL).normalize();
        found.push({ a, b, force: rows[at + 2] * FORCE_N, placed: rows[at + 3] === 1, point, normal });
      }
      return found.sort((one, other) => other.force - one.force);
    }

    isOffending(contact) {
      const names = this.offenders();
      return this.isBroken() && names.length === 2 && names.includes(contact.a) && names.includes(contact.b);
    }

    // One record

    seek(record) {
      this.record = Math.min(Math.max(Math.round(record), 0), this.last);
      const width = 7 * this.data.moving.length;
      this.data.moving.forEach((part, k) => this.place(this.parts[part], this.content.motion, this.record * width + 7 * k));
      this.outline();
      const contacts = this.contactsNow();
      this.pointArrows(contacts);
      this.tell(contacts);
      this.redraw();
    }

    showBoxes() {
      for (const box of this.boxes) box.removeFromParent();
      this.boxes = [...(this.data.boxes || []), ...((this.clause && this.clause.boxes) || [])].flatMap((shape) => {
        const home = shape.body === null ? this.scene : this.parts[this.shownParts([shape.body])[0]];
        if (!home) return [];
        const box = makeBox(shape);
        home.add(box);
        return [box];
      });
    }

    outline() {
      const chosen = new Set(this.shownParts(this.offenders())), broken = this.isBroken();
      this.parts.forEach((group, k) => {
        for (const outline of group.userData.outlines) {
          outline.visible = chosen.has(k);
          outline.material.uniforms.color.value.set(broken ? BROKEN : NEAR);
        }
        for (const material of group.userData.materials) material.emissive.set(chosen.has(k) && broken ? 0x3a1a00 : 0);
      });
    }

    pointArrows(contacts) {
      while (this.arrows.length < contacts.length) {
        this.arrows.push(makeArrow());
        this.scene.add(this.arrows.at(-1));
      }
      this.arrows.forEach((arrow, k) => {
        const contact = contacts[k];
        arrow.visible = Boolean(contact);
        if (!contact) return;
        const length = Math.min(Math.max(contact.force * ARROW_M_PER_N, ARROW_LEAST_M), ARROW_MOST_M);
        const thick = Math.min(0.004, length / 8), tip = Math.min(0.03, length / 2);
        const { shaft, head, material } = arrow.userData;
        head.scale.set(2.5 * thick, tip, 2.5 * thick);
        shaft.scale.set(thick, length - tip, thick);
        shaft.position.y = -tip;
        material.color.set(this.isOffending(contact) ? BROKEN : CONTACT);
        material.opacity = contact.placed ? 0.95 : 0.4;
        arrow.position.copy(contact.point);
        arrow.quaternion.setFromUnitVectors(new THREE.Vector3(0, 1, 0), contact.normal);
      });
    }

    time(record) {
      return this.data.times_s ? this.data.times_s[record] : record * this.data.dt_s;
    }

    seconds(record) {
      return this.time(record).toFixed(2);
    }

    recordAt(time_s) {
      if (!this.data.times_s) return time_s / this.data.dt_s;
      const next = this.data.times_s.findIndex((one) => one > time_s);
      return next < 0 ? this.last : next - 1;
    }

    tell(contacts) {
      this.slider.value = String(this.record);
      this.slider.setAttribute("aria-valuetext", `${this.seconds(this.record)} s`);
      this.clock.textContent = `${this.seconds(this.record)} of ${this.seconds(this.last)} s`;
      const names = this.offenders();
      const who = names.length ? `: ${names.join(", ")}` : "";
      this.state.textContent = this.isBroken() ? `Broken now${who}` : this.clause && this.clause.violated ? `Not broken now${who}` : "";
      this.state.className = this.isBroken() ? "state bad" : "state";
      this.state.hidden = !this.data.clauses.some((clause) => clause.violated);
      const parts = contacts.slice(0, 6).map((one) => `${one.a} – ${one.b} ${one.force.toFixed(one.force < 10 ? 1 : 0)} N${one.placed ? "" : " (over)"}`);
      if (contacts.length > 6) parts.push(`${contacts.length - 6} more`);
      this.list.textContent = parts.length ? `Contacts: ${parts.join("; ")}` : "No contact in this record.";
      const across = `${(100 * this.time(this.record) / (this.time(this.last) || 1)).toFixed(2)}%`;
      for (const line of this.cursors) {
        line.setAttribute("x1", across);
        line.setAttribute("x2", across);
      }
    }

    redraw() {
      if (this.waiting || this.closed) return;
      this.waiting = requestAnimationFrame(() => {
        this.waiting = 0;
        if (!this.closed) this.draw();
      });
    }

    // Whatever stands between the reader and the scene, such as a wall, is cut away.
    draw() {
      const away = this.controls ? this.camera.position.distanceTo(this.controls.target) : 0;
      this.camera.near = Math.max(0.01, away - this.cut || 0.01);
      this.camera.updateProjectionMatrix();
      this.renderer.render(this.scene, this.camera);
    }

    resize() {
      const width = this.stage.clientWidth, height = this.stage.clientHeight;
      if (!width || !height) return;
      this.renderer.setPixelRatio(Math.min(window.devicePixelRatio || 1, 2));
      this.renderer.setSize(width, height, false);
      this.camera.aspect = width / height;
      this.redraw();
    }

    // The clock

    play(on) {
      this.playing = on && this.last > 0;
      this.button.textContent = this.playing ? "Pause" : "Play";
      if (!this.playing) return;
      if (this.record === this.last) this.seek(0);
      let before = performance.now(), due_s = 0;
      const step = (now) => {
        if (!this.playing || this.closed) return;
        due_s += Math.max(now - before, 0) / 1000 * this.speed;
        before = now;
        const reached = Math.floor(this.recordAt(this.time(this.record) + due_s) + 1e-9);
        due_s -= this.time(Math.min(reached, this.last)) - this.time(this.record);
        if (reached > this.record) this.seek(reached);
        if (this.record >= this.last) this.play(false);
        else requestAnimationFrame(step);
      };
      requestAnimationFrame(step);
    }

    jump(record) {
      if (record < 0) return;
      this.play(false);
      this.seek(record);
    }

    // Controls

    buildControls() {
      const make = (tag, text, more = {}) => Object.assign(document.createElement(tag), { textContent: text, ...more });
      const press = (text, act) => {
        const button = make("button", text, { type: "button" });
        button.addEventListener("click", act);
        return button;
      };
      this.stage = make("div", "", { className: "stage", tabIndex: 0 });
      this.stage.setAttribute("role", "application");
      this.stage.setAttribute("aria-label", "The scene in three dimensions. Space plays, left and right step, shift and arrows turn, up and down zoom, F goes to the first violation, W to the worst moment, 0 to the simulator's view, C close up.");
      this.stage.append(this.canvas);
      this.stage.addEventListener("keydown", (event) => this.key(event));
      this.button = press("Play", () => this.play(!this.playing));
      this.slider = make("input", "", { type: "range", min: "0", max: String(this.last), step: "1" });
      this.slider.setAttribute("aria-label", "Time");
      this.slider.addEventListener("input", () => this.jump(Number(this.slider.value)));
      this.clock = make("output", "");
      const speeds = make("select", "");
      speeds.setAttribute("aria-label", "Speed");
      for (const speed of SPEEDS) speeds.append(make("option", `${speed} ×`, { value: String(speed), selected: speed === 1 }));
      speeds.addEventListener("change", () => { this.speed = Number(speeds.value); });
      const clauses = make("select", "");
      clauses.setAttribute("aria-label", "Specification");
      this.data.clauses.forEach((clause, k) => clauses.append(make("option", `${clause.spec}${clause.violated ? "" : " (kept)"}`, { value: String(k) })));
      this.first = press("First violation", () => this.jump(this.clause.first));
      this.worst = press("Worst moment", () => this.jump(this.clause.worst));
      this.near = press("Close up", () => this.closeUp());
      const choose = () => {
        this.clause = this.data.clauses[Number(clauses.value)] || null;
        this.first.disabled = !this.clause || this.clause.first < 0;
        this.worst.disabled = !this.clause;
        this.worst.textContent = this.clause && !this.clause.violated ? "Nearest to the limit" : "Worst moment";
        this.near.disabled = !this.shownParts(this.involved()).length;
        this.showBoxes();
      };
      clauses.addEventListener("change", () => { choose(); this.seek(this.record); });
      clauses.hidden = !this.data.clauses.length;
      choose();
      const home = press("Simulator’s view", () => this.controls.reset());
      const end = press("Close", () => this.close());
      this.state = make("p", "", { className: "state" });
      this.list = make("p", "", { className: "note contacts" });
      const key = make("p", "Drag turns, right drag moves, the wheel zooms. Arrows: the recorded contact forces, 10 cm for 100 N, at least 2 and at most 40 cm long; pale where the contact is over by the end of the step, placed between the bodies. Meshes are simplified, textures averaged.", { className: "note" });
      const bars = [["clock", this.button, this.slider, this.clock, speeds], ["moments", clauses, this.first, this.worst, this.near, home, end]];
      this.figure.replaceChildren(this.stage, ...bars.map(([name, ...children]) => {
        const bar = make("div", "", { className: `bar ${name}` });
        bar.append(...children);
        return bar;
      }), this.state, this.list, key);
      this.addCursors();
      this.observer = new ResizeObserver(() => this.resize());
      this.observer.observe(this.stage);
      this.dark = window.matchMedia("(prefers-color-scheme: dark)");
      this.repaint = () => this.paint();
      this.dark.addEventListener("change", this.repaint);
    }

    // The plots of the same episode show the clock, and take it where they are pressed.
    addCursors() {
      const around = this.figure.closest("article, details") || document;
      this.cursors = [];
      this.plots = Array.from(around.querySelectorAll("svg.chart, svg.spark"));
      this.pressed = (event) => {
        const box = event.currentTarget.getBoundingClientRect();
        this.jump(this.recordAt((event.clientX - box.left) / box.width * this.time(this.last)));
      };
      for (const plot of this.plots) {
        const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
        line.setAttribute("class", "cursor");
        line.setAttribute("y1", "0");
        line.setAttribute("y2", plot.classList.contains("chart") ? "158" : plot.getAttribute("height"));
        plot.append(line);
        plot.addEventListener("click", this.pressed);
        this.cursors.push(line);
      }
    }

    key(event) {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const shift = event.shiftKey, name = event.key.length === 1 ? event.key.toLowerCase() : event.key;
      const acts = {
        " ": () => this.play(!this.playing),
        ArrowLeft: () => (shift ? this.turn(-0.1, 0) : this.jump(Math.max(this.record - 1, 0))),
        ArrowRight: () => (shift ? this.turn(0.1, 0) : this.jump(this.record + 1)),
        ArrowUp: () => (shift ? this.turn(0, 0.1) : this.zoom(0.9)),
        ArrowDown: () => (shift ? this.turn(0, -0.1) : this.zoom(1 / 0.9)),
        Home: () => this.jump(0),
        End: () => this.jump(this.last),
        f: () => this.first.click(),
        w: () => this.worst.click(),
        c: () => this.near.click(),
        0: () => this.controls.reset(),
      };
      if (!acts[name]) return;
      event.preventDefault();
      acts[name]();
    }

    close() {
      this.play(false);
      this.closed = true;
      this.observer.disconnect();
      this.dark.removeEventListener("change", this.repaint);
      for (const plot of this.plots) plot.removeEventListener("click", this.pressed);
      for (const line of this.cursors) line.remove();
      this.controls.dispose();
      this.renderer.dispose();
      this.renderer.forceContextLoss();
      if (open === this) open = null;
      this.figure.player = null;
      offer(this.figure).focus();
    }
  }

  // One episode at a time: browsers have few contexts.
  async function start(figure, button) {
    button.disabled = true;
    button.textContent = "Unpacking …";
    try {
      const data = readJson(`replay3d-${figure.dataset.episode}`);
      const content = await load(data);
      if (open) open.close();
      open = figure.player = new Player(figure, data, content);
      open.stage.focus({ preventScroll: true });
    } catch (error) {
      const note = Object.assign(document.createElement("p"), { className: "note" });
      note.textContent = `The replay cannot be shown here (${error.message}). Text and plots say what happened.`;
      figure.replaceChildren(note);
    }
  }

  function offer(figure) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Turn this episode around in 3-D" });
    button.addEventListener("click", () => start(figure, button));
    figure.replaceChildren(button);
    return button;
  }

  figures.forEach(offer);
})();
