// The forms of the commands: each is made from its definition (web/commands.py), which the page carries. A parameter has
// the control of its kind. Whether a command can be applied is the server's decision: it answers with a plan.

import { dataBlock, el } from "./dom.js";

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const field = (label, control, hint = "") => el("label", { class: "field" }, el("span", {}, label), control, hint ? el("small", {}, hint) : null);
const numbersOf = (text) => text.split(/[\s,]+/).filter(Boolean).map(Number);
const select = (name, names) => el("select", { name }, names.map((one) => el("option", { value: one }, one)));
const valueOf = (form, { name }) => form.elements[name].value.trim();
const others = (pools, pool) => pools.filter((one) => one.name !== pool.name);
const isWhole = (n) => Number.isInteger(n) && n > 0;
const addUp = (numbers) => (numbers.length > 1 ? `${numbers.join(" + ")} = ${sum(numbers)}` : String(numbers[0]));

function freshName(wanted, pools) {
  const taken = new Set(pools.map((one) => one.name));
  let name = wanted;
  for (let n = 2; taken.has(name); n += 1) name = `${wanted}-${n}`;
  return name;
}

function partFields(pool, pools) {
  const sizes = [Math.ceil(pool.world_size / 2), Math.floor(pool.world_size / 2)];
  const half = Math.ceil(pool.groups.length / 2);
  const list = el("div", { class: "parts" });
  const add = (size, names) => {
    const n = list.childElementCount + 1;
    const alone = names.length === 1 && pools.every((one) => one.name !== names[0]) ? names[0] : freshName(`${pool.name}-${n}`, pools);
    list.append(el("fieldset", { class: "part" }, el("legend", {}, `Pool ${n}`),
      field("Name", el("input", { name: "part-name", value: alone, required: true, maxlength: 200, autocomplete: "off" })),
      field("Slots", el("input", { name: "part-size", type: "number", min: 1, max: pool.world_size, value: Math.max(size, 1), required: true })),
      el("div", { class: "part-groups" }, el("span", {}, "Groups"), pool.groups.map((group) => el("label", { class: "check" },
        el("input", { type: "radio", name: `home-of-${group}`, value: n, checked: names.includes(group), required: true }), group)))));
  };
  add(sizes[0], pool.groups.slice(0, half));
  add(sizes[1], pool.groups.slice(half));
  const more = el("button", { type: "button", class: "ghost" }, "+ Add pool");
  more.addEventListener("click", () => {
    add(1, []);
    more.form.dispatchEvent(new Event("input", { bubbles: true }));
    more.hidden = list.childElementCount >= pool.world_size;
  });
  more.hidden = pool.world_size <= 2;
  return [list, more];
}

function partsOf(form, pool) {
  return [...form.querySelectorAll(".part")].map((part, i) => ({
    name: part.querySelector("[name=part-name]").value.trim(),
    size: Number(part.querySelector("[name=part-size]").value),
    groups: pool.groups.filter((group) => [...form.elements].some((one) => one.name === `home-of-${group}` && one.checked && Number(one.value) === i + 1)),
  }));
}

// Of each kind of parameter: its control, its value, and what is wrong with the value before the server is asked.
const KINDS = {
  "this-pool": { control: () => [], value: (form, parameter, pool) => pool.name },
  pool: {
    control: ({ name, label }, pool, pools) => field(label, select(name, others(pools, pool).map((one) => one.name))),
    value: valueOf,
  },
  group: { control: ({ name, label }, pool) => field(label, select(name, pool.groups)), value: valueOf },
  "new-name": {
    control: ({ name, label }, pool, pools) => field(label, el("input", {
      name, value: freshName("all", pools), required: true, maxlength: 200, autocomplete: "off",
    })),
    value: valueOf,
    misfit: (value) => (value ? "" : "The new pool needs a name."),
  },
  pools: {
    control: ({ name, label }, pool, pools) => el("fieldset", { class: "part" }, el("legend", {}, label), others(pools, pool).map((one, i, all) =>
      el("label", { class: "check" }, el("input", { type: "checkbox", name, value: one.name, checked: all.length === 1 }), `${one.name}, ${one.world_size} slots`))),
    value: (form, { name }, pool) => [pool.name, ...[...form.querySelectorAll(`[name="${name}"]:checked`)].map((box) => box.value)],
    misfit: (value) => (value.length < 2 ? "Select at least one other pool." : ""),
  },
  sizes: {
    control: ({ name, label, hint }, pool) => field(label, el("input", {
      name, value: pool.process_on_nodes.join(", "), required: true, inputmode: "numeric", autocomplete: "off",
    }), hint),
    value: (form, parameter) => numbersOf(valueOf(form, parameter)),
    misfit: (value, pool) => {
      if (!value.length || !value.every(isWhole)) return "Enter a whole number of processes for each node.";
      return String(value) === String(pool.process_on_nodes) ? "This is the current size." : "";
    },
  },
  parts: {
    control: (parameter, pool, pools) => partFields(pool, pools),
    value: (form, parameter, pool) => partsOf(form, pool),
    misfit: (parts, pool) => {
      const sizes = parts.map((part) => part.size);
      if (parts.some((part) => !part.name)) return "Each pool needs a name.";
      if (!sizes.every(isWhole)) return "Each pool needs a whole number of slots.";
      return sum(sizes) === pool.world_size ? "" : `The sizes add up to ${addUp(sizes)}, but ${pool.name} has ${pool.world_size} slots.`;
    },
  },
  generations: { control: () => [], value: () => undefined },
};

/** The form of one command. */
class CommandForm {
  constructor(definition) {
    Object.assign(this, definition);
  }

  get verb() {
    return this.kind[0].toUpperCase() + this.kind.slice(1);
  }

  titleOf(pool) {
    return this.title.replace("{pool}", pool.name);
  }

  controls(pool, pools) {
    return this.parameters.flatMap((one) => KINDS[one.kind].control(one, pool, pools));
  }

  #values(form, pool) {
    return Object.fromEntries(this.parameters.map((one) => [one.name, KINDS[one.kind].value(form, one, pool)]));
  }

  /** What is wrong with the form, or nothing. */
  misfit(form, pool) {
    const values = this.#values(form, pool);
    return this.parameters.map((one) => KINDS[one.kind].misfit?.(values[one.name], pool)).find(Boolean) ?? "";
  }

  /** The path and the body, with the generations that this reader saw. */
  request(form, pool, pools) {
    const body = this.#values(form, pool);
    const generationOf = (name) => pools.find((one) => one.name === name)?.generation;
    const several = this.parameters.find((one) => one.kind === "generations");
    if (several) body[several.name] = Object.fromEntries(body.pools.map((name) => [name, generationOf(name)]));
    else body.expected_generation = generationOf(body.pool);
    const path = this.path.replace(/{(\w+)}/g, (all, name) => {
      const value = body[name];
      delete body[name];
      return encodeURIComponent(value);
    });
    return { path, body };
  }

  needsConfirmation(form, pool) {
    if (this.confirm !== "smaller") return this.confirm === "always";
    return this.parameters.some((one) => one.kind === "sizes" && sum(KINDS.sizes.value(form, one)) < pool.world_size);
  }
}

export const FORMS = Object.fromEntries((dataBlock("commands") ?? []).map((one) => [one.kind, new CommandForm(one)]));
