// What can be changed about a pool: the fields of each change, what is wrong with them (`misfit`), the request, and its
// words. Whether it can be applied is the server's decision: it answers with a plan.

import { el } from "./dom.js";

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const path = (kind, name) => `/resource-pools/${encodeURIComponent(name)}/${kind}`;
const field = (label, control, hint = null) => el("label", { class: "field" }, el("span", {}, label), control, hint && el("small", {}, hint));
const numbersOf = (text) => text.split(/[\s,]+/).filter(Boolean).map(Number);
const options = (names) => names.map((name) => el("option", { value: name }, name));

const addUp = (numbers) => (numbers.length > 1 ? `${numbers.join(" + ")} = ${sum(numbers)}` : String(numbers[0]));
const isWhole = (n) => Number.isInteger(n) && n > 0;

const simple = (kind, title, verb, says) => ({
  title: (pool) => `${title} ${pool.name}`, verb, says,
  fields: () => [],
  misfit: () => "",
  request: (form, pool) => ({ path: path(kind, pool.name), body: { expected_generation: pool.generation } }),
  isDestructive: () => false,
});

function freshName(wanted, taken) {
  let name = wanted;
  for (let n = 2; taken.has(name); n += 1) name = `${wanted}-${n}`;
  return name;
}

function partFields(pool, pools) {
  const taken = new Set(pools.map((one) => one.name));
  const sizes = [Math.ceil(pool.world_size / 2), Math.floor(pool.world_size / 2)];
  const half = Math.ceil(pool.groups.length / 2);
  const list = el("div", { class: "parts" });
  const add = (size, names) => {
    const n = list.childElementCount + 1;
    const alone = names.length === 1 && !taken.has(names[0]) ? names[0] : freshName(`${pool.name}-${n}`, taken);
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

const chosenPools = (form, pool) => [pool.name, ...[...form.querySelectorAll("[name=merge]:checked")].map((box) => box.value)];

export const CHANGES = {
  pause: simple("pause", "Pause", "Pause", "New calls on its groups wait. Running calls finish; other pools are not affected."),
  resume: simple("resume", "Resume", "Resume", "Waiting calls continue."),
  resize: {
    title: (pool) => `Resize ${pool.name}`, verb: "Resize", says: "Its groups are rebuilt on the new slots.",
    fields: (pool) => [field("Processes per node", el("input", {
      name: "shape", value: pool.process_on_nodes.join(", "), required: true, inputmode: "numeric", autocomplete: "off",
    }), "One number per node, for example 4, or 2, 2 for two nodes.")],
    misfit: (form, pool) => {
      const shape = numbersOf(form.elements.shape.value);
      if (!shape.length || !shape.every(isWhole)) return "Enter a whole number of processes for each node.";
      return String(shape) === String(pool.process_on_nodes) ? "This is the current size." : "";
    },
    request: (form, pool) => ({
      path: path("resize", pool.name),
      body: { process_on_nodes: numbersOf(form.elements.shape.value), expected_generation: pool.generation },
    }),
    isDestructive: (form, pool) => sum(numbersOf(form.elements.shape.value)) < pool.world_size,
  },
  split: {
    title: (pool) => `Split ${pool.name}`, verb: "Split",
    says: "Splits its slots into several pools, in rank order. Each group is assigned to one of them.",
    fields: partFields,
    misfit: (form, pool) => {
      const parts = partsOf(form, pool);
      const sizes = parts.map((part) => part.size);
      if (parts.some((part) => !part.name)) return "Each pool needs a name.";
      if (!sizes.every(isWhole)) return "Each pool needs a whole number of slots.";
      return sum(sizes) === pool.world_size ? "" : `The sizes add up to ${addUp(sizes)}, but ${pool.name} has ${pool.world_size} slots.`;
    },
    request: (form, pool) => ({ path: path("split", pool.name), body: { parts: partsOf(form, pool), expected_generation: pool.generation } }),
    isDestructive: () => true,
  },
  merge: {
    title: (pool) => `Merge ${pool.name} with others`, verb: "Merge", says: "Merges several pools into one. All groups run on all of its slots.",
    fields: (pool, pools) => {
      const others = pools.filter((one) => one.name !== pool.name);
      return [
        el("fieldset", { class: "part" }, el("legend", {}, "With"), others.map((one) => el("label", { class: "check" },
          el("input", { type: "checkbox", name: "merge", value: one.name, checked: others.length === 1 }), `${one.name}, ${one.world_size} slots`))),
        field("Name of the merged pool", el("input", {
          name: "merged-name", value: freshName("all", new Set(pools.map((one) => one.name))), required: true, maxlength: 200, autocomplete: "off",
        })),
      ];
    },
    misfit: (form, pool) => {
      if (chosenPools(form, pool).length < 2) return "Select at least one other pool.";
      return form.elements["merged-name"].value.trim() ? "" : "The merged pool needs a name.";
    },
    request: (form, pool, pools) => {
      const names = chosenPools(form, pool);
      return {
        path: "/resource-pools/merge",
        body: {
          pools: names, name: form.elements["merged-name"].value.trim(),
          expected_generations: Object.fromEntries(pools.filter((one) => names.includes(one.name)).map((one) => [one.name, one.generation])),
        },
      };
    },
    isDestructive: () => true,
  },
  move: {
    title: (pool) => `Move a group of ${pool.name}`, verb: "Move", says: "Rebuilds the group, and groups that share its processes, on the slots of another pool.",
    fields: (pool, pools) => [
      field("Group", el("select", { name: "group" }, options(pool.groups))),
      field("To pool", el("select", { name: "target" }, options(pools.filter((one) => one.name !== pool.name).map((one) => one.name)))),
    ],
    misfit: () => "",
    request: (form, pool, pools) => ({
      path: `/worker-groups/${encodeURIComponent(form.elements.group.value)}/move`,
      body: { pool: form.elements.target.value, expected_generation: pools.find((one) => one.name === form.elements.target.value)?.generation },
    }),
    isDestructive: () => false,
  },
};
